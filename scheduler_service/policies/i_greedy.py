"""I-Greedy: best fit that keeps the slowdown on every GPU below a limit.

What it does:
    Packs like best_fit, largest jobs first, but only where no job on the GPU would be slowed down by more than
    theta_max.

Why:
    Shows what the interference limit of OJPP is worth without its other limits.

Source:
    The baseline I-Greedy of Li et al., "Interference-aware opportunistic job placement for shared distributed deep
    learning clusters" (OJPP), section 5.2, with Eq. 1, 2 and 7.

Where we differ:
    theta_max comes on top of every job's own max_slowdown_ratio and share, which every policy keeps; the stricter one
    counts. The reserved 99 % bounds have to fit together. Among more than two jobs pairwise slowdowns are
    added up, and a pair about which nothing is known counts as 0 among jobs with share: any.

Cost:
    One look at every GPU in use per different shape of job, O(workers x GPUs) per placed job.
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
class IGreedy(PackingParameters):
    """Best fit with the interference constraint."""

    theta_max: float = field(
        default=0.2, metadata={"description": "largest expected slowdown on any shared GPU; 0.2 = 20 %"}
    )

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        return pack(view, self.rules(), by_resources)

    def rules(self) -> PackingRules:
        """Return those of best fit with the limit."""
        return replace(PackingParameters.rules(self), theta_max=self.theta_max)
