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
    (the 99 % bound, or what the user stated as memory_bytes) has to fit beside the neighbours' as well, since a caching
    allocator keeps its peak; so Eq. 3 packs closer than reservations only where users state less than their peak. A job
    without a memory triple is taken at its reservation all the time (delta = 0, p = 0); one that ran out of memory is
    too. The undefined alpha is SM activity where known, else utilization (compute_requirement). Among more than two
    jobs pairwise slowdowns are added up; an unknown pair counts as 0 among jobs with share: any. Of equally slow GPUs
    the one that is left fullest is taken. A job's workers are on different GPUs of one kind; if they take new GPUs too,
    a slowdown of 0 counts from the first worker on, so that those never break Eq. 8. A worker too large for an empty
    GPU makes its job wait with a reason, which the paper does not check.
    The order is the one of the text, sorted once: taking the front job never changes the order of the rest. The printed
    Algorithm 3 takes the largest job before it sorts (listing_order). No order is always good; `orders` tries several
    in every round and keeps the plan that places most workers on fewest new GPUs.

Cost:
    One sort; per job one expression over all GPUs, and one look at the workers of every job touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.decisions import Decision, Start
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.view import SchedulingView
from scheduler_service.policies.packing_orders import as_listed, by_gregariousness, by_loneliness, by_resources
from scheduler_service.policies.packing_rules import Best, MemoryModel, PackingRules
from scheduler_service.policies.worker_packing import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Ojpp:
    """All constraints of OJPP, most easygoing jobs first."""

    compute_requirement: str = field(
        default="sm_activity",
        metadata={"description": "what counts as compute: sm_activity (else utilization), utilization or zero"},
    )
    tau_max: float = field(
        default=0.1, metadata={"description": "largest probability that memory peaks on one GPU coincide; 0.1 = 10 %"}
    )
    theta_max: float = field(
        default=0.2, metadata={"description": "largest expected slowdown on any shared GPU; 0.2 = 20 %"}
    )
    theta_diff: float = field(
        default=0.1, metadata={"description": "largest difference between the slowdowns of one job's workers"}
    )
    listing_order: bool = field(
        default=False,
        metadata={"description": "order as printed in Algorithm 3: the largest job before all others"},
    )

    orders: int = field(
        default=1,
        metadata={
            "description": "orders tried per round; the one that fills fewest GPUs is taken: 1 = the paper's, 2 = also "
            "its reverse, 3 = also the largest first"
        },
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        _ = self._rules()
        if not 1 <= self.orders <= 3:
            raise PolicyParameterError(f"orders must be 1, 2 or 3, but is {self.orders}")

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        first = as_listed if self.listing_order else by_gregariousness
        orders = (first, by_loneliness, by_resources)[: self.orders]
        return min((pack(view, self._rules(), order) for order in orders), key=lambda plan: _worth(view, plan))

    def _rules(self) -> PackingRules:
        return PackingRules(
            best=Best.LEAST_INTERFERENCE,
            memory=MemoryModel.ONE_SURGE,
            compute_requirement=self.compute_requirement,
            tau_max=self.tau_max,
            theta_max=self.theta_max,
            theta_diff=self.theta_diff,
        )


def _worth(view: SchedulingView, plan: Sequence[Decision]) -> tuple[int, int]:
    """Return how good a plan is, lower being better: most workers placed, then fewest GPUs that were free."""
    taken = [part.gpu_id for one in plan if isinstance(one, Start) for part in one.assignments]
    return -len(taken), len(view.free_gpu_ids & set(taken))
