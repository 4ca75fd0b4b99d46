"""OJPP: packs the most easygoing jobs first and keeps every limit on interference, collisions and balance.

What it does:
    Takes first the jobs whose memory peaks collide least with the others', and puts each worker on the GPU in use on
    which the worst slowdown would then be lowest, if compute, low memory with one peak, collision probability, slowdown
    and the balance between the workers of every job touched stay within their limits. If a worker fits none, the job
    may use new GPUs too. All workers or none. Running jobs are never touched.

Why:
    Fewer GPUs with bounded loss of speed: easygoing jobs leave the most room for those that follow.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    Algorithms 2 and 3, Eq. 1-8 and 20.

Where we differ:
    Every job's consent is asked as under every policy (share, max_slowdown_ratio). The memory that the engine reserves
    (the 99 % bound, or what the user stated as memory_bytes) has to fit with that of co-located jobs, since a caching
    allocator keeps its peak. Eq. 3 packs closer only with opportunistic_memory, jobs that release memory; then Eq. 5
    counts only where their peaks do not all fit. A job without a memory triple is taken at its reservation all the time
    (delta = 0, p = 0); one that ran out of memory is too. The undefined alpha is SM activity where known, else
    utilization (compute_requirement). Among more than two jobs pairwise slowdowns are added up; an unknown pair counts
    as 0 among jobs with share: any. Of equally slow GPUs the one that is left fullest is taken. A job's workers are on
    different GPUs of one kind; if they take new GPUs too, a slowdown of 0 counts from the first worker on, so that
    those never break Eq. 8. A worker too large for an empty GPU makes its job wait with a reason, which the paper does
    not check.
    The paper's order is the one of the text, sorted once: taking the front job never changes the order of the rest. The
    printed Algorithm 3 takes the largest job before it sorts (listing_order). The paper makes one plan and looks at one
    device at a time (looks_max = 0). We compare plans, the widest jobs first, the paper's, some by lot, as many as
    looks_max allows, and keep the one that places most workers on fewest new GPUs. In ours a job may join several
    devices at once where one alone would unbalance a job there, and its own workers may all be slowed down.

Cost:
    A plan: one sort; per job one expression over all GPUs, and one look at the workers of every job touched. More than
    one plan only where queue and cluster together are smaller than half of looks_max. With opportunistic_memory each
    job looks at every GPU, also on a large cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.planning.policy_parameters import require_not_negative
from scheduler_service.policies.packing.packing_orders import as_listed, by_gregariousness
from scheduler_service.policies.packing.packing_rules import OjppParameters
from scheduler_service.policies.packing.packing_search import search_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ojpp(OjppParameters):
    """All constraints of OJPP, most easygoing jobs first."""

    listing_order: bool = field(
        default=False,
        metadata={"description": "order as printed in Algorithm 3: the largest job before all others"},
    )
    looks_max: int = field(
        default=2_000,
        metadata={
            "description": "jobs and GPUs that all plans of a round may look at together, the best plan being taken: "
            "0 = the paper's one plan, 1 = one plan of ours"
        },
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        _ = self.rules()
        require_not_negative(looks_max=self.looks_max)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        order = as_listed if self.listing_order else by_gregariousness
        return search_plan(view, self.rules(), order, self.looks_max)
