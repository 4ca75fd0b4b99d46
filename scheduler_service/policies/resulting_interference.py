"""Who would slow whom down by how much, once a job has come to a device.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 3.3, Eq. 6-8. Among more than two jobs the pairwise slowdowns are added up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scheduler_service.core.capacity import Resident, expected_slowdown_ratio
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import Gpu
from scheduler_service.core.view import Predictions


def slowdowns_on(gpu: Gpu, residents: Sequence[Resident], predictions: Predictions) -> list[float]:
    """Return the slowdown of each job of one device, in their order; Eq. 6 is the largest of them."""
    return [
        expected_slowdown_ratio(victim, [other for other in residents if other is not victim], gpu, predictions)[0]
        for victim in residents
    ]


class WorkerBalance:
    """How differently the workers of one job are slowed down (Eq. 8).

    Args:
        ledger: Where everybody is, kept up to date by its owner.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._gpu_ids = {
            job_id: tuple(part.gpu_id for part in job.assignments if part.gpu_id in ledger.view.gpus)
            for job_id, job in ledger.view.running.items()
            if len(job.assignments) > 1
        }

    def add(self, job_id: str, gpu_ids: Sequence[str]) -> None:
        """Remember where a job's workers are."""
        if len(gpu_ids) > 1:
            self._gpu_ids[job_id] = tuple(gpu_ids)

    def difference_ratio(self, job_id: str, newcomer: Resident, newcomer_gpu_ids: Collection[str]) -> float:
        """Return how far the slowdowns of a job's workers lie apart when a newcomer has these GPUs too; 0 = not at all.

        Args:
            job_id: A job that is already placed.
            newcomer: The job that would come.
            newcomer_gpu_ids: Where it would be.
        """
        slowdowns = [
            self._slowdown_ratio(job_id, gpu_id, (newcomer,) if gpu_id in newcomer_gpu_ids else ())
            for gpu_id in self._gpu_ids.get(job_id, ())
        ]
        return max(slowdowns) - min(slowdowns) if slowdowns else 0.0

    def _slowdown_ratio(self, job_id: str, gpu_id: str, newcomers: Sequence[Resident]) -> float:
        residents = self._ledger.residents(gpu_id)
        victim = next(resident for resident in residents if resident.request.job_id == job_id)
        others = [*(resident for resident in residents if resident is not victim), *newcomers]
        view = self._ledger.view
        return expected_slowdown_ratio(victim, others, view.gpus[gpu_id].gpu, view.predictions)[0]
