"""Which of OJPP's constraints a packing policy keeps, and whether a device keeps them with one more worker.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC):
    Eq. 1-8 and section 5.2, which builds its baselines from single constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.jobs.opportunistic_sharing import collision_probability
from scheduler_service.core.records import Reason
from scheduler_service.policies.packing.opportunistic_memory import (
    ComputeRequirement,
    Demand,
    base_and_largest_surge,
    compute_sum,
    peaks_sum,
)

ROUNDING_DIGITS = 9
"""Of what is compared: equal devices tie whatever the order of the sum."""

ROUNDING_RATIO = 1e-9
"""Sums of fractions may pass a limit by this much: 0.1 + 0.2 is not above 0.3."""

OPPORTUNISTIC_DESCRIPTION = (
    "jobs that release memory (--releases-memory) keep what they hold all the time and one peak together, as long as "
    "peaks that do not all fit coincide tau_max of the time at most; false = every job keeps its peak"
)


class MemoryModel(StrEnum):
    """How the memory of co-located jobs adds up, next to the reservations that always have to fit."""

    RESERVED = "reserved"
    PEAKS = "peaks"
    ONE_SURGE = "one_surge"


class Best(StrEnum):
    """Which of several devices is taken."""

    LEAST_LEFTOVER = "least_leftover"
    LEAST_INTERFERENCE = "least_interference"
    MOST_FREE_MEMORY = "most_free_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRules:
    """The constraints of one policy; None = the constraint is not kept.

    Attributes:
        best: Which device is taken.
        memory: Eq. 2 (PEAKS), Eq. 3 (ONE_SURGE) or neither.
        compute_requirement: What stands for alpha in Eq. 1: sm_activity, utilization or zero.
        tau_max: Largest collision probability of a device (Eq. 5).
        theta_max: Largest slowdown on a device (Eq. 7).
        theta_diff: Largest difference between the slowdowns of one job's workers (Eq. 8).
        bounds_harmless_collisions: Whether Eq. 5 counts, as printed, also where all peaks fit at once.
        joins_groups: Whether a job may join several devices at once where one alone breaks Eq. 8 for a job there.

    Raises:
        PolicyParameterError: A value has no meaning.
    """

    best: Best
    memory: MemoryModel
    compute_requirement: str
    tau_max: float | None = None
    theta_max: float | None = None
    theta_diff: float | None = None
    bounds_harmless_collisions: bool = True
    joins_groups: bool = False

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        if self.compute_requirement not in list(ComputeRequirement):
            valid = ", ".join(ComputeRequirement)
            raise PolicyParameterError(f"compute_requirement must be one of {valid}, not {self.compute_requirement!r}")
        if self.tau_max is not None and not 0 <= self.tau_max <= 1:
            raise PolicyParameterError(f"tau_max must be in [0, 1], not {self.tau_max}")
        if min(self.theta_max or 0.0, self.theta_diff or 0.0) < 0:
            raise PolicyParameterError("theta_max and theta_diff must not be negative")

    @property
    def alpha(self) -> ComputeRequirement:
        """What stands for alpha."""
        return ComputeRequirement(self.compute_requirement)

    @property
    def prefers_devices_in_use(self) -> bool:
        """A packing policy opens a new device only when it must."""
        return self.best is not Best.MOST_FREE_MEMORY

    def memory_ratio(self, demands: Sequence[Demand]) -> float:
        """Return the share of a device's memory that these workers take by the policy's model."""
        if self.memory is MemoryModel.ONE_SURGE:
            return base_and_largest_surge(demands)
        return peaks_sum(demands)

    def leftover(self, demands: Sequence[Demand]) -> float:
        """Return what is left of a device's compute and memory together; 2 = everything."""
        return round(2.0 - compute_sum(demands) - self.memory_ratio(demands), ROUNDING_DIGITS)

    def computes_too_much(self, compute_ratio: float) -> bool:
        """Say whether workers that compute so much together break Eq. 1."""
        return compute_ratio > 1.0 + ROUNDING_RATIO

    def demand_obstacle(self, gpu_id: str, demands: Sequence[Demand]) -> Reason | None:
        """Return which of Eq. 1-5 these workers break together on one device, or None."""
        compute_ratio = compute_sum(demands)
        if self.computes_too_much(compute_ratio):
            numbers = {"utilization_ratio": compute_ratio, "utilization_max_ratio": 1.0}
            return Reason(code="UTILIZATION_TOO_HIGH", numbers=numbers, gpu_ids=(gpu_id,))
        memory_ratio = self.memory_ratio(demands)
        if self.memory is not MemoryModel.RESERVED and memory_ratio > 1.0 + ROUNDING_RATIO:
            return Reason(code="PEAKS_DO_NOT_FIT", numbers={"memory_ratio": memory_ratio}, gpu_ids=(gpu_id,))
        is_harmless = not self.bounds_harmless_collisions and peaks_sum(demands) <= 1.0 + ROUNDING_RATIO
        if self.tau_max is None or is_harmless:
            return None
        collision_ratio = collision_probability(demand.surge_probability_ratio for demand in demands)
        if collision_ratio <= self.tau_max + ROUNDING_RATIO:
            return None
        numbers = {"collision_ratio": collision_ratio, "collision_max_ratio": self.tau_max}
        return Reason(code="COLLISION_TOO_LIKELY", numbers=numbers, gpu_ids=(gpu_id,))

    def slowdown_obstacle(self, gpu_id: str, job_ids: Sequence[str], slowdowns: Sequence[float]) -> Reason | None:
        """Return that Eq. 7 is broken on a device whose jobs have these pairwise sums, or None."""
        worst = max(slowdowns)
        if self.theta_max is None or worst <= self.theta_max + ROUNDING_RATIO:
            return None
        numbers = {"pairwise_slowdown_ratio": worst, "device_slowdown_max_ratio": self.theta_max}
        victim = job_ids[slowdowns.index(worst)]
        return Reason(code="DEVICE_SLOWDOWN_TOO_HIGH", numbers=numbers, job_ids=(victim,), gpu_ids=(gpu_id,))

    def balance_obstacle(self, gpu_id: str, job_id: str, difference_ratio: float) -> Reason | None:
        """Return that Eq. 8 is broken for a job whose workers' slowdowns lie so far apart, or None."""
        if self.theta_diff is None or difference_ratio <= self.theta_diff + ROUNDING_RATIO:
            return None
        numbers = {"difference_ratio": difference_ratio, "difference_max_ratio": self.theta_diff}
        return Reason(code="WORKERS_OUT_OF_BALANCE", numbers=numbers, job_ids=(job_id,), gpu_ids=(gpu_id,))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingParameters:
    """What every packing policy lets its user choose; by themselves they are the rules of best fit."""

    compute_requirement: str = field(
        default="sm_activity",
        metadata={"description": "what counts as compute: sm_activity (else utilization), utilization or zero"},
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        _ = self.rules()

    def rules(self) -> PackingRules:
        """Return them as rules."""
        return PackingRules(
            best=Best.LEAST_LEFTOVER, memory=MemoryModel.PEAKS, compute_requirement=self.compute_requirement
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OjppParameters(PackingParameters):
    """The limits of OJPP."""

    tau_max: float = field(
        default=0.1, metadata={"description": "largest probability that memory peaks on one GPU coincide; 0.1 = 10 %"}
    )
    theta_max: float = field(
        default=0.2, metadata={"description": "largest expected slowdown on any shared GPU; 0.2 = 20 %"}
    )
    theta_diff: float = field(
        default=0.1, metadata={"description": "largest difference between the slowdowns of one job's workers"}
    )
    opportunistic_memory: bool = field(default=False, metadata={"description": OPPORTUNISTIC_DESCRIPTION})

    @property
    def opportunistic_tau_ratio(self) -> float:
        """How often peaks of jobs that release memory may coincide; 0 = every job keeps its peak."""
        return self.tau_max if self.opportunistic_memory else 0.0

    def rules(self) -> PackingRules:
        """Return them as rules."""
        return PackingRules(
            best=Best.LEAST_INTERFERENCE,
            memory=MemoryModel.ONE_SURGE,
            compute_requirement=self.compute_requirement,
            tau_max=self.tau_max,
            theta_max=self.theta_max,
            theta_diff=self.theta_diff,
            bounds_harmless_collisions=not self.opportunistic_memory,
        )


FREE_MEMORY_RULES = PackingRules(best=Best.MOST_FREE_MEMORY, memory=MemoryModel.RESERVED, compute_requirement="zero")
"""Only free memory counts, the GPU with most of it first."""
