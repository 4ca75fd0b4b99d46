"""OJPP's picture of a worker on a device: compute, low memory state, surge above it, and how often it surges.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    sections 3.1 and 3.2, Eq. 1-4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler_service.core.cluster_view.capacity import Resident, is_reliable
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge
from scheduler_service.core.records import Gpu, JobPrediction, MemoryTriple, Share

LEAST_COMPUTE_RATIO = 1e-6
"""The paper's alpha lies in (0, 1]; a worker predicted to compute nothing still counts."""


class ComputeRequirement(StrEnum):
    """What stands for the paper's alpha, which it does not define."""

    SM_ACTIVITY = "sm_activity"
    UTILIZATION = "utilization"
    ZERO = "zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one worker asks of one kind of device, as fractions of the device.

    Attributes:
        compute_ratio: alpha, in (0, 1]; 0 where compute is not counted.
        base_ratio: gamma, memory in the low state.
        surge_ratio: delta, memory on top of it in the high state.
        surge_probability_ratio: p, share of time in the high state.
    """

    compute_ratio: float
    base_ratio: float
    surge_ratio: float = 0.0
    surge_probability_ratio: float = 0.0

    @property
    def peak_ratio(self) -> float:
        """Memory in the high state, the beta of Eq. 2."""
        return self.base_ratio + self.surge_ratio

    @property
    def size(self) -> tuple[float, float]:
        """What jobs are ordered by: compute, then memory."""
        return self.compute_ratio, self.peak_ratio


def demand_of(
    resident: Resident, gpu: Gpu, predictions: Predictions, compute_requirement: ComputeRequirement
) -> Demand:
    """Return what a worker asks of a device.

    Without a trusted memory triple the worker has one state: what is reserved for it, which is the 99 % bound of its
    memory where nothing else was stated or learned. A job about which nothing is known computes on the whole device.

    Args:
        resident: The worker with its reservation on this kind of device.
        gpu: Any device of the kind.
        predictions: What is known of the job.
        compute_requirement: What stands for alpha.
    """
    prediction = predictions.job(resident.request.key, gpu.device)
    compute_ratio = compute_ratio_of(prediction, compute_requirement)
    if resident.memory_surge is not None:
        return _demand_with_surge(resident, resident.memory_surge, gpu, compute_ratio)
    triple = _trusted_triple(resident, prediction)
    if triple is None:
        return Demand(compute_ratio=compute_ratio, base_ratio=resident.memory_reserved_bytes / gpu.memory_bytes)
    return Demand(
        compute_ratio=compute_ratio,
        base_ratio=triple.gamma_ratio,
        surge_ratio=triple.delta_ratio,
        surge_probability_ratio=triple.high_state_ratio,
    )


def _demand_with_surge(resident: Resident, surge: MemorySurge, gpu: Gpu, compute_ratio: float) -> Demand:
    """Return a worker by what is kept for it: Eq. 3 and 5 hold for what the plan check holds them for."""
    return Demand(
        compute_ratio=compute_ratio,
        base_ratio=(resident.memory_reserved_bytes - surge.surge_bytes) / gpu.memory_bytes,
        surge_ratio=surge.surge_bytes / gpu.memory_bytes,
        surge_probability_ratio=surge.high_state_ratio,
    )


def compute_ratio_of(prediction: JobPrediction | None, requirement: ComputeRequirement) -> float:
    """Return alpha of a worker by what is known of its job; one of which nothing is known takes the whole device."""
    if requirement is ComputeRequirement.ZERO:
        return 0.0
    if prediction is None:
        return 1.0
    compute_ratio = prediction.utilization_ratio
    if requirement is ComputeRequirement.SM_ACTIVITY and prediction.sm_activity_ratio is not None:
        compute_ratio = prediction.sm_activity_ratio
    return min(max(compute_ratio, LEAST_COMPUTE_RATIO), 1.0)


def _trusted_triple(resident: Resident, prediction: JobPrediction | None) -> MemoryTriple | None:
    """After an out-of-memory end the measured floor counts, not the triple that was wrong.

    What a caller states of a job counts as it is; what our predictor says only of a job that releases memory.
    """
    request = resident.request
    if prediction is None or request.memory_floor_bytes:
        return None
    if prediction.prediction_id and not request.releases_memory:
        return None
    return prediction.memory_triple if is_reliable(prediction) or request.share is Share.ANY else None


def compute_sum(demands: Iterable[Demand]) -> float:
    """Return the left side of Eq. 1."""
    return sum(demand.compute_ratio for demand in demands)


def peaks_sum(demands: Iterable[Demand]) -> float:
    """Return the left side of Eq. 2: every worker in the high state at once."""
    return sum(demand.peak_ratio for demand in demands)


def base_and_largest_surge(demands: Sequence[Demand]) -> float:
    """Return the left side of Eq. 3: all in the low state, except the worker with the largest surge in the high one."""
    return sum(demand.base_ratio for demand in demands) + max((demand.surge_ratio for demand in demands), default=0.0)
