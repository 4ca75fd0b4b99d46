"""The second place on a GPU that holds exactly one job: which job is there, which may join, at what cost for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_service.core.capacity import Resident, expected_bytes, reserved_bytes
from scheduler_service.core.colocation_slowdown import ExpectedSlowdown, sum_of_pairs
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.sharing_consent import consented_slowdowns
from scheduler_service.core.step_times import remaining_ms_of
from scheduler_service.core.view import GpuView, Predictions

JOBS_PER_GPU_MAX = 2
"""C in Eq. 9: with more than two jobs on the same GPUs sharing rarely pays (section IV-B)."""


class Admission(NamedTuple):
    """A job that may join the one on a GPU, and what that costs both; unknown = all that the job accepts."""

    resident: Resident
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
            gpu.device,
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
        """Return the job as it would join, or why it may not: memory, or the consent of one of the two."""
        gpu = self.entry.gpu
        prediction = self.predictions.job(request.key, gpu.device)
        reserved = reserved_bytes(request, prediction, micro_batch_size, gpu)
        if reserved is None:
            numbers = {
                "needed_bytes": expected_bytes(request, prediction, micro_batch_size),
                "gpu_memory_bytes": gpu.memory_bytes,
            }
            return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        incoming_job = Resident(request=request, micro_batch_size=micro_batch_size, memory_reserved_bytes=reserved)
        consented = consented_slowdowns(incoming_job, (self.partner,), gpu, self.predictions)
        if isinstance(consented, Reason):
            return consented
        if reserved > self.memory_free_bytes:
            numbers = {
                "needed_bytes": reserved,
                "free_bytes": self.memory_free_bytes,
                "gpu_memory_bytes": gpu.memory_bytes,
            }
            return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        (_, own), (_, other) = consented
        return Admission(incoming_job, self._known(incoming_job, own), self._known(self.partner, other, incoming_job))

    def slowdowns(self, incoming_job: Resident) -> tuple[float, float]:
        """Return the slowdown ratio of the new job and that of its partner; unknown = all that the job accepts."""
        return self._slowdown(incoming_job, self.partner), self._slowdown(self.partner, incoming_job)

    def _known(self, victim: Resident, slowdown: ExpectedSlowdown, other: Resident | None = None) -> float:
        return slowdown.ratio if slowdown.is_known else self._slowdown(victim, other or self.partner)

    def remaining_ms(self, request: JobRequest, *, steps_done: int, gpus: int, micro_batch_size: int) -> float | None:
        """Return how long a job still needs alone on GPUs of this kind, or None."""
        prediction = self.predictions.job(request.key, self.entry.gpu.device)
        return remaining_ms_of(request, prediction, steps_done=steps_done, gpus=gpus, micro_batch_size=micro_batch_size)

    def _slowdown(self, victim: Resident, other: Resident) -> float:
        gpu, key, other_key = self.entry.gpu, victim.request.key, other.request.key
        sizes = victim.micro_batch_size, other.micro_batch_size
        pair = self.predictions.pair(key, other_key, gpu.device, *sizes)
        return sum_of_pairs((pair.slowdown_ratio,)) if pair is not None else victim.request.max_slowdown_ratio
