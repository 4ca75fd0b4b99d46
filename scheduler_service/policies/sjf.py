"""Shortest job first: the least predicted remaining time goes first, each job alone on its GPUs.

What it does:
    Takes pending jobs in the order of their predicted remaining time and starts each alone on free GPUs. A job that
    does not fit now lets longer but narrower ones pass. Running jobs are never touched.

Why:
    Short jobs do not wait behind long ones, which lowers the mean time to completion. The baseline that shows what the
    order alone is worth, without sharing.

Source:
    The baseline SJF of the SJF-BSBF paper, section VI-A2; the remaining time L_k is that of its Algorithm 1.

Where we differ:
    The paper calls the baseline ideal because it knows the true times; ours uses predictions, and jobs whose time
    is unknown come last, in order of submission. A steady stream of short jobs starves the long ones; `aging_ms`
    bounds that: a job that has waited so long goes first, and none passes it.

Cost:
    Sorting the queue, then one look at the nodes with free GPUs for every different shape of job. Of a long queue, or
    on a large cluster, only the jobs are looked at that may start; the others share one reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.planning.policy_parameters import AGING_DESCRIPTION, require_not_negative
from scheduler_service.policies.ordering.shortest_first import decide_shortest_first
from scheduler_service.policies.placement import length_queue
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound


@dataclass(frozen=True, slots=True, kw_only=True)
class Sjf:
    """Shortest remaining time first, one job per GPU, no preemption."""

    decides_only_waiting: ClassVar[bool] = True

    aging_ms: int = field(default=0, metadata={"description": AGING_DESCRIPTION})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(aging_ms=self.aging_ms)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        round_ = ExclusiveRound(view)
        is_grouped = length_queue.is_grouped(view) and not view.explain and not self.aging_ms
        lengths = view.index.lengths if is_grouped and round_.closed() is None else None
        if lengths is not None:
            return length_queue.decide_long_queue(view, lengths, round_)
        return decide_shortest_first(
            view, self.aging_ms, round_.decide, round_.is_impossible, round_.candidates, closed=round_.closed
        )
