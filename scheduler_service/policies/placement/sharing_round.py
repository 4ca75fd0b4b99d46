"""One call of decide of a policy that lets jobs share GPUs: each job starts where the policy places it, or waits.

What differs between policies is where a job may go (`SharedPlacement`); that a failure stands for all equal jobs, how
holds are folded and when candidate tables are made is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Protocol

from scheduler_service.core.cluster_view.remaining_time_queue import GroupedQueue
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Decision, Hold, HoldRest, Start
from scheduler_service.core.records import Reason
from scheduler_service.policies.ordering.waiting_list import Waiting


class SharedPlacement(Protocol):
    """Where jobs may go by the rules of one policy; it keeps what this round has given away."""

    def key(self, job: PendingJob) -> object:
        """Return all that decides about a job: where one failed, the next one with an equal key fails too."""

    def closed(self) -> Reason | None:
        """Return why no job can start any more, or None while a GPU has a place."""

    def place(self, job: PendingJob) -> Start | Reason:
        """Start a job, with its candidate table where that is wanted, or return why it cannot start now."""

    def opens_places(self, start: Start) -> bool:
        """Return whether jobs that failed may succeed now that this one has started."""

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return how every GPU looks for a job that waits; nothing where no table is wanted."""


class SharingRound:
    """What earlier jobs took is gone for later ones, and a job that fails leaves a reason to all equal jobs.

    Args:
        view: The cluster.
        placement: Where jobs may go.
    """

    def __init__(self, view: SchedulingView, placement: SharedPlacement) -> None:
        self._view = view
        self._placement = placement
        self._failed: dict[object, Reason] = {}

    def has_failed(self, key: object) -> bool:
        """Return whether an equal job failed, and nothing has come free for it since."""
        return key in self._failed

    def decide(self, job: PendingJob) -> Decision:
        """Start a job, or return why not; where an equal job failed before, for the same reason, as one object."""
        return self._decide(job, self._placement.key(job))

    def _decide(self, job: PendingJob, key: object) -> Decision:
        found = self._failed.get(key) or self._placement.place(job)
        if isinstance(found, Start):
            if self._placement.opens_places(found):
                self._failed.clear()
            return found
        self._failed[key] = found
        return Hold(job_id=job.request.job_id, reason=found, candidates=self._placement.candidates(job))

    def decide_all(self, jobs: Iterable[PendingJob]) -> list[Decision]:
        """Return the decisions about all jobs in this order; those that wait for a known reason are folded into one.

        Once no job can start any more the others are not looked at, unless a table is wanted: a round over a full
        cluster costs the same however long the queue is.
        """
        decisions: list[Decision] = []
        waiting = Waiting()
        decided: list[str] = []
        placement, failed, explains = self._placement, self._failed, self._view.explain
        for job in jobs:
            job_id = job.request.job_id
            key = placement.key(job)
            if explains:
                known = None if self._view.wants_table(job_id) else placement.closed() or failed.get(key)
            else:
                closed = placement.closed()
                if closed is not None:
                    rest = HoldRest(queue=self._view.pending, decided=frozenset(decided), reason=closed)
                    return [*decisions, *waiting.holds(), rest]
                # Of a long queue nearly all jobs come no further than this.
                known = failed.get(key)
            decided.append(job_id)
            if known is None:
                decisions.append(self._decide(job, key))
            else:
                waiting.add(job_id, known)
        return [*decisions, *waiting.holds()]

    def decide_by_shape(self, queue: GroupedQueue) -> list[Decision]:
        """Return the decisions about all jobs in the order of a queue: what starts, and one about all that wait.

        It costs what starts and the number of shapes, however many jobs there are; of a shape whose first job fails no
        other is looked at. For placements whose key is the shape of a job, and in which no start opens a place.
        """
        decisions, jobs, placement = list[Decision](), self._view.index.pending_by_id, self._placement
        heads = [head for at_width in queue.heads.values() for head in at_width]
        heapify(heads)
        while heads and placement.closed() is None:
            turn = heappop(heads)
            group = queue.group_of(turn)
            found = placement.place(jobs[turn[2]])
            if isinstance(found, Start):
                decisions.append(found)
                later = queue.next_after(turn)
                if later is not None:
                    heappush(heads, later)
            else:
                self._failed[group.shape] = found
        if len(decisions) == len(self._view.pending):
            return decisions
        decided = frozenset(one.job_id for one in decisions)
        reason = placement.closed() or next(iter(self._failed.values()))
        reasons: Mapping[object, Reason] = MappingProxyType(self._failed)
        return [*decisions, HoldRest(queue=self._view.pending, decided=decided, reason=reason, reasons=reasons)]
