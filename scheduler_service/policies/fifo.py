"""First in, first out.

What it does:
    Starts jobs in the order of submission, each alone on free GPUs: of the kinds of GPU that are free, the one on which
    the job's predicted step is shortest. Running jobs are never touched.

Why:
    The baseline that is easiest to understand. No job is overtaken, so none starves, and a wide job waits only for
    those before it.

Source:
    The baseline FIFO of the SJF-BSBF paper, section VI-A1: order of arrival, the GPUs with the least execution time.

Where we differ:
    Execution time is the predicted step time of the job on each kind of GPU; the paper leaves its origin open. A job
    that could not start even on the empty cluster blocks none. With `overtaking` a job that does not fit now lets
    later ones pass, which is how a plain first-fit queue behaves; wide jobs may then wait long.

Cost:
    Sorting the free GPUs, then one look at every node with free GPUs per started job; the queue behind the first job
    that waits costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold
from scheduler_service.policies.ordering.waiting_list import rest_behind
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """First in, first out, one job per GPU.

    Attributes:
        overtaking: Let later jobs pass one that does not fit now.
    """

    decides_only_waiting: ClassVar[bool] = True

    overtaking: bool = field(default=False, metadata={"description": "let later jobs pass one that does not fit now"})

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job."""
        round_ = ExclusiveRound(view)
        decisions: list[Decision] = []
        for position, job in enumerate(view.pending):
            decision = round_.decide(job)
            decisions.append(decision)
            if isinstance(decision, Hold) and not self.overtaking and not round_.is_impossible(job.request):
                return [*decisions, *rest_behind(view, position, round_.candidates)]
        return decisions
