"""DRF, dominant resource fairness: one more worker for the job with the smallest dominant share, until all is given.

What it does:
    Gives GPUs, CPU and host memory away in steps: the job with the smallest dominant share gets the next number of
    workers in its list, each with a parameter server, until nothing fits any more. Jobs start with what they were
    given, on the emptiest nodes; running jobs are reshaped towards it, each at most once per interval, never stopped.

Why:
    The fair baseline: it gives as much as it can and does not ask what a further worker is worth.

Source:
    The baseline DRF of Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters",
    section 6.1: fairness, work-conserving, load-balancing placement, rescheduling in every interval, servers to
    workers 1:1.

Where we differ:
    Every job is a user of its own, as in that comparison. GPUs of different kinds count as one resource; one job's
    GPUs are of one kind. A running job keeps at least the smallest number in its list. GPUs that a shrinking job gives
    up are there once it has stopped, so those that get them start a round later.

Cost:
    O(steps x log jobs) for the shares, one look at the nodes with free GPUs for every start and growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

import numpy as np

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Start
from scheduler_service.core.planning.policy_parameters import require_positive
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.elasticity.counted_starts import Reshaper
from scheduler_service.policies.elasticity.reshaping import counts_of
from scheduler_service.policies.elasticity.task_demand import Amounts, TaskRoom, pair_demand
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound
from scheduler_service.policies.placement.free_gpus import sized


@dataclass(frozen=True, slots=True, kw_only=True)
class DominantResourceFairness:
    """Smallest dominant share first."""

    interval_ms: int = field(
        default=1_200_000, metadata={"description": "a running job is reshaped at most once in this time, in ms"}
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_positive(interval_ms=self.interval_ms)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return reshapes, then one decision per pending job."""
        room = TaskRoom(view)
        round_ = ExclusiveRound(view, room.choose_emptiest)
        reshaper = Reshaper(round_.ledger, remaining_ms=self.interval_ms)
        possible = [job for job in view.pending if _least_possible(round_, job.request) is not None]
        wanted = fair_counts(view, room, possible, reshaper.adjustable)
        decisions: list[Decision] = []
        for job in view.pending:
            decision = _decide_one(round_, job, wanted.get(job.request.job_id, 0))
            if isinstance(decision, Start):
                room.take(job.request, decision.assignments)
            decisions.append(decision)
        return [*reshaper.towards(wanted), *decisions]


def _least_possible(round_: ExclusiveRound, request: JobRequest) -> int | None:
    """Return the smallest number of GPUs with which a job could start on the empty cluster."""
    return next((count for count in counts_of(request) if not round_.is_impossible(sized(request, count))), None)


def _decide_one(round_: ExclusiveRound, job: PendingJob, count: int) -> Decision:
    least = _least_possible(round_, job.request) or counts_of(job.request)[0]
    if count:
        start = round_.start(replace(job, request=sized(job.request, count)))
        if start is not None:
            return start
    hold = round_.hold(replace(job, request=sized(job.request, least)))
    if not count and round_.impossible(sized(job.request, least)) is None:
        return Hold(job_id=hold.job_id, reason=Reason(code="SHARES_GIVEN_AWAY"), candidates=hold.candidates)
    return hold


def fair_counts(
    view: SchedulingView, room: TaskRoom, waiting: Sequence[PendingJob], adjustable: Mapping[str, JobRequest]
) -> dict[str, int]:
    """Return how many workers each job gets by progressive filling.

    Args:
        view: The cluster.
        room: What its nodes have, and what is left of them.
        waiting: Jobs that hold nothing.
        adjustable: Running jobs whose numbers may change now; the others keep theirs.
    """
    totals = sum(room.capacity.values(), np.zeros(3))
    left = sum(room.left.values(), np.zeros(3))
    arrivals = {job_id: view.running[job_id].submitted_at_ms for job_id in adjustable}
    arrivals |= {job.request.job_id: job.submitted_at_ms for job in waiting}
    requests = {**{job.request.job_id: job.request for job in waiting}, **adjustable}
    counts = dict.fromkeys(requests, 0)
    for job_id, request in adjustable.items():
        counts[job_id] = counts_of(request)[0]
        left = left + pair_demand(request) * (len(view.running[job_id].assignments) - counts[job_id])
    shares = {job_id: _dominant_share(request, totals) for job_id, request in requests.items()}
    queue = [(shares[job_id] * counts[job_id], arrivals[job_id], job_id) for job_id in requests]
    heapify(queue)
    while queue:
        _, arrival, job_id = heappop(queue)
        more = next((count for count in counts_of(requests[job_id]) if count > counts[job_id]), None)
        need = pair_demand(requests[job_id]) * ((more or 0) - counts[job_id])
        if more is not None and bool((need <= left + 1e-9).all()):
            left = left - need
            counts[job_id] = more
            heappush(queue, (shares[job_id] * more, arrival, job_id))
    return counts


def _dominant_share(request: JobRequest, totals: Amounts) -> float:
    """Return the share of the cluster that one worker and its server take of the resource they take most of."""
    has_any = totals > 0
    return float((pair_demand(request)[has_any] / totals[has_any]).max()) if has_any.any() else 0.0
