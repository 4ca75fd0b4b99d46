"""B-Greedy: best fit that keeps the workers of every job equally fast.

What it does:
    Packs like best_fit, largest jobs first, but only where the slowdowns of one job's workers differ by theta_diff at
    most: those of the incoming job and of every job it would share with.

Why:
    Synchronous workers wait for the slowest of them. Shows what the balance limit of OJPP is worth without its other
    limits.

Source:
    The baseline B-Greedy of Li et al., "Interference-aware opportunistic job placement for shared distributed deep
    learning clusters" (OJPP), section 5.2, with Eq. 1, 2 and 8.

Where we differ:
    Every job's consent is asked as under every policy (share, max_slowdown_ratio), and the reserved 99 % bounds have to
    fit together. A job's workers are on different GPUs. If they take new GPUs too, a slowdown of 0 counts from
    the first worker on (line 11 of Algorithm 2), so that the new GPUs never break the limit.

Cost:
    One look at every GPU in use per different shape of job, and one at the workers of every job touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policies.packing.ojpp_packing import pack
from scheduler_service.policies.packing.packing_orders import by_resources
from scheduler_service.policies.packing.packing_rules import PackingParameters, PackingRules


@dataclass(frozen=True, slots=True, kw_only=True)
class BGreedy(PackingParameters):
    """Best fit with the balance constraint."""

    theta_diff: float = field(
        default=0.1, metadata={"description": "largest difference between the slowdowns of one job's workers"}
    )

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        return pack(view, self.rules(), by_resources)

    def rules(self) -> PackingRules:
        """Return those of best fit with the limit."""
        return replace(PackingParameters.rules(self), theta_diff=self.theta_diff)
