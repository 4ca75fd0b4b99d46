"""Memory that jobs hold all the time and memory that they need now and then: what they take of a GPU together.

A job that releases memory between its peaks holds a part of its reservation always and the rest, its surge, a share of
the time. Where the operator allows it, jobs on one GPU keep what each holds always and one surge, the largest, as long
as two are in their surges at once with a small probability only. Every other job holds its reservation always.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 3.2, Eq. 3-5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from scheduler_service.core.records import Gpu, JobPrediction, JobRequest, Reason

ROUNDING_RATIO = 1e-9
"""Probabilities may pass a limit by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySurge:
    """The part of a reservation that a job needs now and then.

    Attributes:
        surge_bytes: On each of its GPUs; the rest of the reservation is held all the time.
        high_state_ratio: Share of time in which it is needed.
    """

    surge_bytes: int
    high_state_ratio: float


def surge_of(
    request: JobRequest, prediction: JobPrediction | None, reserved_bytes: int, gpu: Gpu
) -> MemorySurge | None:
    """Return the part of a reservation that a job does not hold all the time; None = it holds all of it always.

    The prediction has to be trusted. After memory ran out the measured floor counts, not the states that were wrong.

    Args:
        request: The job, which says whether it releases memory.
        prediction: What is known of it on the GPU's device type.
        reserved_bytes: Kept for its largest use.
        gpu: Where it would be.
    """
    triple = prediction.memory_triple if prediction is not None else None
    if triple is None or not request.releases_memory or request.memory_floor_bytes:
        return None
    surge_bytes = reserved_bytes - ceil(triple.gamma_ratio * gpu.memory_bytes)
    if surge_bytes <= 0 or triple.high_state_ratio >= 1.0:
        return None
    return MemorySurge(surge_bytes=surge_bytes, high_state_ratio=triple.high_state_ratio)


def held_bytes(reserved_bytes: int, surge: MemorySurge | None) -> int:
    """Return what a job holds all the time of its reservation; 0 = all of it."""
    return max(reserved_bytes - surge.surge_bytes, 1) if surge is not None else 0


def claimed_bytes(kept: Iterable[tuple[int, MemorySurge | None]]) -> int:
    """Return what jobs take of a GPU together (the left side of Eq. 3), the reservation and the surge of each given."""
    held_bytes = largest_bytes = 0
    for reserved_bytes, surge in kept:
        held_bytes += reserved_bytes
        if surge is not None:
            surge_bytes = min(surge.surge_bytes, reserved_bytes)
            held_bytes -= surge_bytes
            largest_bytes = max(largest_bytes, surge_bytes)
    return held_bytes + largest_bytes


def largest_surge_bytes(surges: Iterable[MemorySurge | None]) -> int:
    """Return the largest of the surges; 0 = there is none."""
    return max((surge.surge_bytes for surge in surges if surge is not None), default=0)


def collision_probability(surge_probabilities: Iterable[float]) -> float:
    """Return the probability that two workers or more are in the high state at once (Eq. 4).

    Summed up worker by worker instead of subtracted from 1, so that small probabilities keep their digits.

    Args:
        surge_probabilities: p of every worker on the device, each in [0, 1].
    """
    none, one, several = 1.0, 0.0, 0.0
    for probability in surge_probabilities:
        several += one * probability
        one = one * (1.0 - probability) + none * probability
        none *= 1.0 - probability
    return several


def collision_obstacle(gpu_id: str, surges: Iterable[MemorySurge | None], tau_ratio: float) -> Reason | None:
    """Return that the surges of jobs on one GPU would coincide more often than is allowed (Eq. 5), or None."""
    collision_ratio = collision_probability(surge.high_state_ratio for surge in surges if surge is not None)
    if collision_ratio <= tau_ratio + ROUNDING_RATIO:
        return None
    numbers = {"collision_ratio": collision_ratio, "collision_max_ratio": tau_ratio}
    return Reason(code="COLLISION_TOO_LIKELY", numbers=numbers, gpu_ids=(gpu_id,))
