"""The second place on a GPU that holds exactly one job: which job is there, which may join, at what cost for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from scheduler_service.core.cluster_view.capacity import Resident, expected_bytes, reserved_bytes
from scheduler_service.core.cluster_view.shared_ways import place_of
from scheduler_service.core.cluster_view.step_times import remaining_ms_of
from scheduler_service.core.cluster_view.view import GpuView, Predictions
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.sharing.colocation_slowdown import sum_of_pairs
from scheduler_service.core.sharing.sharing_consent import PairConsent

JOBS_PER_GPU_MAX = 2
"""C in Eq. 9: with more than two jobs on the same GPUs sharing rarely pays (section IV-B)."""


class Admission(NamedTuple):
    """What it costs both when a job joins the one on a GPU; unknown = all that the job accepts."""

    slowdown_ratio: float
    partner_slowdown_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedGpu:
    """A GPU with its one job and the memory that is left.

    Attributes:
        partner: The job that is there.
        partner_remaining_ms: Returns how long that job still needs alone; None = unknown.
    """

    entry: GpuView
    partner: Resident
    memory_free_bytes: int
    predictions: Predictions
    partner_remaining_ms: Callable[[], float | None]

    @property
    def partner_id(self) -> str:
        """The job that is there."""
        return self.partner.request.job_id

    @property
    def shape(self) -> object:
        """What admission and slowdowns depend on; spots of one shape give every job the same answers."""
        gpu, resident = self.entry.gpu, self.partner
        request = resident.request
        return (
            place_of(gpu),
            gpu.memory_bytes,
            self.memory_free_bytes,
            request.key,
            request.share,
            request.max_slowdown_ratio,
            resident.is_open_to_trial,
            resident.is_on_trial,
            resident.micro_batch_size,
        )

    def admit(self, request: JobRequest, micro_batch_size: int) -> Admission | Reason:
        """Return how a job would join, or why it may not: memory, or the consent of one of the two."""
        gpu = self.entry.gpu
        reserved = reserved_bytes(request, self.predictions.job(request.key, gpu.device), micro_batch_size, gpu)
        return SecondPlace(self, request).admit(micro_batch_size, reserved)

    def slowdowns(self, incoming_job: Resident) -> tuple[float, float]:
        """Return the slowdown ratio of the new job and that of its partner; unknown = all that the job accepts."""
        return self._slowdown(incoming_job, self.partner), self._slowdown(self.partner, incoming_job)

    def remaining_ms(self, request: JobRequest, *, steps_done: int, gpus: int, micro_batch_size: int) -> float | None:
        """Return how long a job still needs alone on GPUs of this kind, or None."""
        prediction = self.predictions.job(request.key, self.entry.gpu.device)
        return remaining_ms_of(request, prediction, steps_done=steps_done, gpus=gpus, micro_batch_size=micro_batch_size)

    def _slowdown(self, victim: Resident, other: Resident) -> float:
        gpu, key, other_key = self.entry.gpu, victim.request.key, other.request.key
        sizes = victim.micro_batch_size, other.micro_batch_size
        pair = self.predictions.pair(key, other_key, place_of(gpu), *sizes)
        return sum_of_pairs((pair.slowdown_ratio,)) if pair is not None else victim.request.max_slowdown_ratio


class SecondPlace:
    """Whether one job may join another one, micro-batch by micro-batch: what those do not change is found once.

    Args:
        occupied_gpu: Where.
        request: The job that would come.
    """

    def __init__(self, occupied_gpu: OccupiedGpu, request: JobRequest) -> None:
        self._occupied_gpu, self._gpu = occupied_gpu, occupied_gpu.entry.gpu
        self._incoming_job = incoming_job = Resident(request=request, micro_batch_size=0, memory_reserved_bytes=0)
        self._consent = PairConsent(incoming_job, occupied_gpu.partner, self._gpu, occupied_gpu.predictions)

    def admit(self, micro_batch_size: int, reserved: int | None) -> Admission | Reason:
        """Return how the job would join with so many samples per pass, or why it may not.

        Args:
            micro_batch_size: Samples per pass.
            reserved: `capacity.reserved_bytes` of the job at this size.
        """
        if reserved is None:
            return self._too_large(micro_batch_size)
        consented = self._consent.at(micro_batch_size)
        if isinstance(consented, Reason):
            return consented
        gpu, free_bytes = self._gpu, self._occupied_gpu.memory_free_bytes
        if reserved > free_bytes:
            numbers = {"needed_bytes": reserved, "free_bytes": free_bytes, "gpu_memory_bytes": gpu.memory_bytes}
            return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        own, other = consented
        if own.is_known and other.is_known:
            return Admission(own.ratio, other.ratio)
        accepted = self._occupied_gpu.slowdowns(replace(self._incoming_job, micro_batch_size=micro_batch_size))
        return Admission(own.ratio if own.is_known else accepted[0], other.ratio if other.is_known else accepted[1])

    def _too_large(self, micro_batch_size: int) -> Reason:
        request, gpu = self._incoming_job.request, self._gpu
        prediction = self._occupied_gpu.predictions.job(request.key, gpu.device)
        needed_bytes = expected_bytes(request, prediction, micro_batch_size)
        numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
        return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers, gpu_ids=(gpu.gpu_id,))
