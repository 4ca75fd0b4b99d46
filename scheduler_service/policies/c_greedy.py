"""C-Greedy: best fit that lets memory peaks share the same room if they seldom coincide.

What it does:
    Packs like best_fit, largest jobs first, but counts for every GPU the low memory of all jobs and one peak only, as
    long as two peaks coincide with a probability of tau_max at most.

Why:
    Training uses its peak memory in a part of each step only. Shows what the collision limit of OJPP is worth without
    its other limits.

Source:
    The baseline C-Greedy of Li et al., "Interference-aware opportunistic job placement for shared distributed deep
    learning clusters" (OJPP), section 5.2, with Eq. 1 and 3-5.

Where we differ:
    Every job's consent is asked as under every policy (share, max_slowdown_ratio). The memory that the engine reserves
    (the 99 % bound, or what the user stated as memory_bytes) has to fit with that of co-located jobs, since a caching
    allocator keeps its peak. Eq. 3 packs closer only with opportunistic_memory, jobs that release memory between peaks;
    then Eq. 5 counts only where their peaks do not all fit. A job without a memory triple is taken at its reservation
    all the time (delta = 0, p = 0).

Cost:
    One look at every GPU in use per different shape of job; Eq. 4 is linear in the jobs on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.packing.ojpp_packing import pack
from scheduler_service.policies.packing.packing_orders import by_resources
from scheduler_service.policies.packing.packing_rules import (
    OPPORTUNISTIC_DESCRIPTION,
    MemoryModel,
    PackingParameters,
    PackingRules,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CGreedy(PackingParameters):
    """Best fit with the collision constraint."""

    tau_max: float = field(
        default=0.1, metadata={"description": "largest probability that memory peaks on one GPU coincide; 0.1 = 10 %"}
    )

    opportunistic_memory: bool = field(default=False, metadata={"description": OPPORTUNISTIC_DESCRIPTION})

    @property
    def opportunistic_tau_ratio(self) -> float:
        """How often peaks of jobs that release memory may coincide; 0 = every job keeps its peak."""
        return self.tau_max if self.opportunistic_memory else 0.0

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        return pack(view, self.rules(), by_resources)

    def rules(self) -> PackingRules:
        """Return those of best fit with one peak and the limit."""
        return replace(
            PackingParameters.rules(self),
            memory=MemoryModel.ONE_SURGE,
            tau_max=self.tau_max,
            bounds_harmless_collisions=not self.opportunistic_memory,
        )
