"""OJPP's measure of interference: what each other job of a device costs one alone, added up.

Its paper's rules choose by it. What a job consents to and what is reported is `core.colocation_slowdown`, which is
larger where three and more share.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 3.3, Eq. 6-8.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.records import Gpu
from scheduler_service.core.sharing.colocation_slowdown import expected_slowdown, expected_slowdowns


def slowdowns_on(gpu: Gpu, residents: Sequence[Resident], predictions: Predictions) -> list[float]:
    """Return the pairwise sum of each job of one device, in their order; Eq. 6 is the largest of them."""
    return [slowdown.pairwise_sum_ratio for _, slowdown in expected_slowdowns(residents, gpu, predictions)]


class KnownSlowdowns(Protocol):
    """An object that keeps the slowdown of every job on every GPU."""

    def slowdowns_of(
        self, job_id: str, incoming_job: Resident, gpu_ids: Collection[str]
    ) -> Sequence[tuple[str, float]] | None:
        """Return the slowdown of each worker of a job by GPU, with an incoming job there too; None = unknown."""


class WorkerBalance:
    """How differently the workers of one job are slowed down (Eq. 8).

    Args:
        ledger: Where every job is, kept up to date by its owner.

    Attributes:
        arrays: Returns slowdowns faster than the ledger, where there is any.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.arrays: KnownSlowdowns | None = None
        self._ledger = ledger
        self._gpu_ids = {
            job_id: tuple(part.gpu_id for part in job.assignments if part.gpu_id in ledger.view.gpus)
            for job_id, job in ledger.view.running.items()
            if len(job.assignments) > 1
        }
        self._wide_jobs: dict[str, list[str]] = {}
        for job_id, gpu_ids in self._gpu_ids.items():
            self._note_wide(job_id, gpu_ids)

    def add(self, job_id: str, gpu_ids: Sequence[str]) -> None:
        """Remember where a job's workers are."""
        if len(gpu_ids) > 1:
            self._gpu_ids[job_id] = tuple(gpu_ids)
            self._note_wide(job_id, gpu_ids)

    def _note_wide(self, job_id: str, gpu_ids: Sequence[str]) -> None:
        for gpu_id in gpu_ids:
            self._wide_jobs.setdefault(gpu_id, []).append(job_id)

    def wide_jobs_on(self, gpu_id: str) -> Sequence[str]:
        """Return the jobs on a GPU that have others too: those whose balance an incoming job may disturb."""
        return self._wide_jobs.get(gpu_id, ())

    def slowdowns_of(
        self, job_id: str, incoming_job: Resident, incoming_gpu_ids: Collection[str]
    ) -> Sequence[tuple[str, float]]:
        """Return the slowdown of each worker of a job by GPU, when an incoming job has these GPUs too.

        Args:
            job_id: A job that is already placed on several GPUs; of others nothing is returned.
            incoming_job: The job that would come.
            incoming_gpu_ids: Where it would be.
        """
        if self.arrays is not None:
            known = self.arrays.slowdowns_of(job_id, incoming_job, incoming_gpu_ids)
            if known is not None:
                return known
        return [
            (gpu_id, self._slowdown_ratio(job_id, gpu_id, (incoming_job,) if gpu_id in incoming_gpu_ids else ()))
            for gpu_id in self._gpu_ids.get(job_id, ())
        ]

    def difference_ratio(self, job_id: str, incoming_job: Resident, incoming_gpu_ids: Collection[str]) -> float:
        """Return how far the slowdowns of a job's workers lie apart when an incoming job has these GPUs too; 0 = equal.

        Args:
            job_id: A job that is already placed.
            incoming_job: The job that would come.
            incoming_gpu_ids: Where it would be.
        """
        slowdowns = [ratio for _, ratio in self.slowdowns_of(job_id, incoming_job, incoming_gpu_ids)]
        return max(slowdowns) - min(slowdowns) if slowdowns else 0.0

    def _slowdown_ratio(self, job_id: str, gpu_id: str, incoming: Sequence[Resident]) -> float:
        residents = self._ledger.residents(gpu_id)
        victim = next(resident for resident in residents if resident.request.job_id == job_id)
        others = [*(resident for resident in residents if resident is not victim), *incoming]
        view = self._ledger.view
        return expected_slowdown(victim, others, view.gpus[gpu_id].gpu, view.predictions).pairwise_sum_ratio
