"""Tetris: shortest remaining time first, each job on the node of which least is left.

What it does:
    Takes pending jobs in the order of their predicted remaining time and starts each alone on free GPUs of the node
    where least GPUs, CPU and host memory are then left, with one parameter server next to every worker. A job that does
    not fit lets later ones pass. Running jobs are never touched.

Why:
    The baseline that packs several resources well and uses how long jobs take, but not what one more worker brings.

Source:
    The baseline Tetris of Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters",
    section 6.1: shortest remaining time preferred, packed to minimise fragmentation, servers to workers 1:1.

Where we differ:
    Decides whenever something has changed, not every 20 minutes. What is left is the sum of the shares of the node's
    GPUs, CPU cores and host memory; the original weighs packing against time in one score, whose weights Optimus does
    not give. A job's worker count is the one it asked for.

Cost:
    Sorting the queue and the free GPUs; one look at every node with free GPUs per different shape of job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Start
from scheduler_service.core.planning.policy_parameters import AGING_DESCRIPTION, require_not_negative
from scheduler_service.policies.elasticity.task_demand import TaskRoom
from scheduler_service.policies.ordering.shortest_first import decide_shortest_first
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound


@dataclass(frozen=True, slots=True, kw_only=True)
class Tetris:
    """Shortest first, least left over."""

    aging_ms: int = field(default=0, metadata={"description": AGING_DESCRIPTION})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(aging_ms=self.aging_ms)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        room = TaskRoom(view)
        round_ = ExclusiveRound(view, room.choose_least_leftover)

        def decide_one(job: PendingJob) -> Decision:
            decision = round_.decide(job)
            if isinstance(decision, Start):
                room.take(job.request, decision.assignments)
            return decision

        return decide_shortest_first(view, self.aging_ms, decide_one, round_.is_impossible, round_.candidates)
