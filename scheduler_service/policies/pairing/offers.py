"""GPUs that a job could have, alone or as the second one there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.step_times import remaining_by_elapsed_ms, remaining_ms_of
from scheduler_service.core.cluster_view.view import GpuView, PendingJob
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.pairing.occupied_gpu import JOBS_PER_GPU_MAX, OccupiedGpu
from scheduler_service.policies.pairing.pair_arrays import PairArrays
from scheduler_service.policies.placement.free_gpus import passes_alone
from scheduler_service.policies.placement.reasons import host_reason, too_large


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One GPU that the job could have.

    Attributes:
        entry: The GPU.
        micro_batch_size: Samples per pass that suit it best.
        occupied_gpu: The GPU with its job; None = it is free.
        cost_ms: Sum of the ends of both jobs; lower is better. 0 where nothing is weighed.
    """

    entry: GpuView
    micro_batch_size: int
    occupied_gpu: OccupiedGpu | None = None
    cost_ms: float = 0.0

    @property
    def order(self) -> tuple[bool, float, str, int, str]:
        """Shared ones by cost, then the free ones; ties are never broken at random."""
        return self.occupied_gpu is None, self.cost_ms, self.entry.node_id, self.entry.gpu.index, self.entry.gpu.gpu_id


class SharingRule(Protocol):
    """What distinguishes the policies: whether and how a job takes the second place on a GPU."""

    @property
    def weighs_pairs(self) -> bool:
        """The place with the least sum of both ends is wanted, not the first that consents."""

    @property
    def recheck_gang(self) -> bool:
        """The whole gang is compared with waiting for all its partners."""

    def length(self, job: PendingJob) -> int:
        """Return what else than its request decides about a job; 0 = nothing."""

    def offer(self, job: PendingJob, occupied_gpu: OccupiedGpu, pairs: PairArrays | None) -> Offer | Reason:
        """Return how the job would use this GPU, or why not; `pairs` holds answers where columns are kept."""

    def objection(self, job: PendingJob, occupied_gpus: Sequence[OccupiedGpu], micro_batch_size: int) -> Reason | None:
        """Return why the job should not start on these GPUs together, or None."""


class Offers:
    """Asks GPUs what they offer to a job; what is known of an occupied GPU is kept until another job comes there.

    Args:
        ledger: The cluster with what this round has given away.
        rule: Decides about second places.

    Attributes:
        pairs: Holds answers where arrays are kept.
    """

    def __init__(self, ledger: Ledger, rule: SharingRule) -> None:
        self.pairs: PairArrays | None = None
        self._ledger, self._view, self._rule = ledger, ledger.view, rule
        self._started: dict[str, PendingJob] = {}
        self._occupied_gpus: dict[str, OccupiedGpu] = {}

    def note(self, job: PendingJob, gpu_ids: Iterable[str]) -> None:
        """Note that a job has come to these GPUs."""
        self._started[job.request.job_id] = job
        for gpu_id in gpu_ids:
            self._occupied_gpus.pop(gpu_id, None)

    def look(self, job: PendingJob, gpu_ids: Iterable[str]) -> tuple[list[Offer], dict[str, Reason]]:
        """Ask for GPUs whether the job could have them (lines 12-15)."""
        offers: list[Offer] = []
        obstacles: dict[str, Reason] = {}
        for gpu_id in gpu_ids:
            found = self._offer(job, self._view.gpus[gpu_id])
            if isinstance(found, Reason):
                obstacles[gpu_id] = found
            else:
                offers.append(found)
        return sorted(offers, key=lambda offer: offer.order), obstacles

    def _offer(self, job: PendingJob, entry: GpuView) -> Offer | Reason:
        request, gpu_id = job.request, entry.gpu.gpu_id
        known = self._occupied_gpus.get(gpu_id)
        if known is not None and self._has_room(request, entry.node_id):
            return self._rule.offer(job, known, self.pairs)
        if entry.is_releasing:
            return Reason(code="GPU_RELEASING", gpu_ids=(gpu_id,))
        residents = self._ledger.residents(gpu_id)
        if len(residents) >= JOBS_PER_GPU_MAX:
            numbers = {"jobs_on_gpu": len(residents), "jobs_on_gpu_max": JOBS_PER_GPU_MAX}
            ids = tuple(resident.request.job_id for resident in residents)
            return Reason(code="TOO_MANY_JOBS", numbers=numbers, job_ids=ids, gpu_ids=(gpu_id,))
        if not self._has_room(request, entry.node_id):
            return host_reason(request)
        if residents:
            self._occupied_gpus[gpu_id] = occupied_gpu = self._occupied_gpu(entry, residents[0])
            return self._rule.offer(job, occupied_gpu, self.pairs)
        alone = passes_alone(self._view, request, entry.gpu)
        return Offer(entry=entry, micro_batch_size=alone[0]) if alone else too_large(self._view, request, entry.gpu)

    def _occupied_gpu(self, entry: GpuView, resident: Resident) -> OccupiedGpu:
        remaining_ms: Callable[[], float | None] = partial(self._remaining_ms, entry, resident)
        if self.pairs is not None:
            remaining_ms = partial(self.pairs.remaining_ms, entry.gpu.gpu_id)
        return OccupiedGpu(
            entry=entry,
            partner=resident,
            memory_free_bytes=self._ledger.memory_free_bytes(entry),
            predictions=self._view.predictions,
            partner_remaining_ms=remaining_ms,
        )

    def _remaining_ms(self, entry: GpuView, resident: Resident) -> float:
        """Return how long a job on a GPU still needs alone; of unknown length, as long as it has run."""
        request = resident.request
        running, started = self._view.running.get(request.job_id), self._started.get(request.job_id)
        known = running or started
        remaining_ms = remaining_ms_of(
            request,
            self._view.predictions.job(request.key, entry.gpu.device),
            steps_done=known.steps_done if known is not None else 0,
            gpus=len(running.assignments) if running is not None else request.gpus,
            micro_batch_size=resident.micro_batch_size,
        )
        if remaining_ms is not None:
            return remaining_ms
        return remaining_by_elapsed_ms(self._view.now_ms - running.started_at_ms if running is not None else 0)

    def _has_room(self, request: JobRequest, node_id: str) -> bool:
        return self._ledger.host_fits(self._view.nodes[node_id], request, gpus_here=1, gpus=request.gpus)
