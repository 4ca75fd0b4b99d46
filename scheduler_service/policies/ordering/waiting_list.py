"""Decides about one job after another; jobs that wait for one and the same reason become one decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.records import Reason

CandidateTable = Callable[[PendingJob], tuple[Candidate, ...]]
"""How every GPU looks for a job that waits."""


class Waiting:
    """Jobs that wait, put together where they wait for one and the same reason."""

    def __init__(self) -> None:
        self._job_ids: dict[int, tuple[Reason, list[str]]] = {}

    def add(self, job_id: str, reason: Reason) -> None:
        """Let a job wait; the reasons of equal jobs are one object."""
        known = self._job_ids.get(id(reason))
        if known is None:
            known = self._job_ids[id(reason)] = (reason, [])
        known[1].append(job_id)

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


def rest_behind(view: SchedulingView, position: int, table: CandidateTable) -> list[Decision]:
    """Return the holds of the jobs behind the one at this position, which waits: in order of submission none passes.

    They are one decision, unless their tables are wanted.
    """
    first, jobs_behind = view.pending[position], len(view.pending) - position - 1
    if not jobs_behind:
        return []
    reason = Reason(code="BEHIND_IN_QUEUE", numbers={"jobs_waiting": jobs_behind}, job_ids=(first.request.job_id,))
    if view.explain:
        return explained_holds(view.pending[position + 1 :], reason, table)
    decided = frozenset(view.pending[place].request.job_id for place in range(position + 1))
    return [HoldRest(queue=view.pending, decided=decided, reason=reason)]


def explained_holds(jobs: Iterable[PendingJob], reason: Reason, table: CandidateTable) -> list[Decision]:
    """Return holds for one reason, each with the job's own table."""
    return [Hold(job_id=job.request.job_id, reason=reason, candidates=table(job)) for job in jobs]
