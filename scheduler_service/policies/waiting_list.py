"""Decides about one job after another; jobs that wait for one and the same reason become one decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.records import Reason
from scheduler_service.core.view import PendingJob


class Waiting:
    """Jobs that wait, put together where they wait for one and the same reason."""

    def __init__(self) -> None:
        self._job_ids: dict[int, tuple[Reason, list[str]]] = {}

    def add(self, job_id: str, reason: Reason) -> None:
        """Let a job wait; the reasons of equal jobs are one object."""
        self._job_ids.setdefault(id(reason), (reason, []))[1].append(job_id)

    def holds(self) -> list[HoldMany]:
        """Return the decisions about them, in the order of the reasons."""
        return [HoldMany(job_ids=tuple(job_ids), reason=reason) for reason, job_ids in self._job_ids.values()]


def decide_in_order(jobs: Iterable[PendingJob], decide: Callable[[PendingJob], Decision]) -> list[Decision]:
    """Return the decisions about all jobs: starts in order, then the holds, folded where they share their reason."""
    decisions: list[Decision] = []
    waiting = Waiting()
    for job in jobs:
        decision = decide(job)
        if isinstance(decision, Hold) and not decision.candidates and not decision.until_ms:
            waiting.add(decision.job_id, decision.reason)
        else:
            decisions.append(decision)
    return [*decisions, *waiting.holds()]


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
