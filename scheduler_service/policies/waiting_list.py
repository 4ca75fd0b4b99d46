"""Decides about one job after another; jobs that wait for one and the same reason become one decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.records import Reason
from scheduler_service.core.view import PendingJob


def decide_in_order(jobs: Iterable[PendingJob], decide: Callable[[PendingJob], Decision]) -> list[Decision]:
    """Return the decisions about all jobs: starts in order, then the holds, folded where they share their reason."""
    decisions: list[Decision] = []
    waiting: dict[int, tuple[Reason, list[str]]] = {}
    for job in jobs:
        decision = decide(job)
        if isinstance(decision, Hold) and not decision.candidates and not decision.until_ms:
            waiting.setdefault(id(decision.reason), (decision.reason, []))[1].append(decision.job_id)
        else:
            decisions.append(decision)
    return [*decisions, *(HoldMany(job_ids=tuple(ids), reason=reason) for reason, ids in waiting.values())]


def behind(first: PendingJob, others: Sequence[PendingJob]) -> list[Decision]:
    """Return the holds of jobs that may not pass the first one that waits."""
    if not others:
        return []
    return [HoldMany(job_ids=tuple(job.request.job_id for job in others), reason=_behind(first, len(others)))]


def rest_behind(queue: Sequence[PendingJob], position: int) -> list[Decision]:
    """Return the same for a queue in submission order whose job at this position waits."""
    count = len(queue) - position - 1
    if not count:
        return []
    decided = frozenset(queue[place].request.job_id for place in range(position + 1))
    return [HoldRest(queue=queue, decided=decided, reason=_behind(queue[position], count))]


def _behind(first: PendingJob, count: int) -> Reason:
    return Reason(code="BEHIND_IN_QUEUE", numbers={"jobs_waiting": count}, job_ids=(first.request.job_id,))
