"""A round of sharing over a long queue: a job that cannot start is passed over without a look.

A job that fails leaves nothing behind but the count of those that were weighed. So a job needs a look only if free
GPUs may suffice for it, or if sharing may pay for it on as many GPUs as it needs, which one comparison per GPU shows
for the shortest job of every group at once. All others wait for one and the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice

from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeGroup, RemainingTimeQueue, Turn
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, HoldRest, Start
from scheduler_service.policies.pairing.sjf_sharing import SjfSharing, none_passed_over
from scheduler_service.policies.placement.sharing_round import SharingRound

QUEUE_LONG_MIN = 8
"""Shorter queues are looked at job by job where GPUs are few, so that every job gets a reason of its own; on fewer GPUs
than this so are longer ones, up to as many looks in all."""

Candidate = tuple[Turn, RemainingTimeGroup, int]
"""A job that may start: turn, group, steps left."""
Waiting = tuple[RemainingTimeGroup, list[tuple[Turn, int]]]
"""A group, and the next of its lengths: turn, steps left."""


def is_long(jobs: int, gpus: int) -> bool:
    """Tells whether this many waiting jobs are too many to look at each of them, on a cluster of few GPUs."""
    return jobs >= QUEUE_LONG_MIN and jobs * gpus >= QUEUE_LONG_MIN**2


class SharingQueue:
    """One call of decide.

    Args:
        view: The cluster.
        queue: Its pending jobs by remaining time.
        placement: Where single jobs may go.
        weighed_jobs_max: Different jobs that may fail to share with running ones before a round only fills free GPUs.
    """

    def __init__(
        self, view: SchedulingView, queue: RemainingTimeQueue, placement: SjfSharing, *, weighed_jobs_max: int
    ) -> None:
        self._view, self._queue, self._placement = view, queue, placement
        self._round = SharingRound(view, placement)
        self._weighed_jobs_max = weighed_jobs_max
        self._further = self._in_order(weighed_jobs_max)
        # Weighing reaches no further: at least one job of every earlier group failed, or was started.
        self._near = list(islice(self._further, weighed_jobs_max))
        self._looked: dict[RemainingTimeGroup, set[int]] = {}
        self._started: dict[tuple[RemainingTimeGroup, int], Turn] = {}
        self._latest: Candidate | None = None
        self._widest_free = self._widest = 0

    def decide(self) -> list[Decision]:
        """Return the decisions about the jobs that were looked at, and one for all others; once."""
        self._placement.limit.passed_over = self._passed_over
        try:
            return self._decisions()
        finally:
            # A limit that kept naming the queue would leave the whole round to the garbage collector.
            self._placement.limit.passed_over = none_passed_over

    def _decisions(self) -> list[Decision]:
        jobs, decisions, waiting = self._view.index.pending_by_id, list[Decision](), len(self._view.pending)
        candidates = self._candidates()
        while candidates:
            self._latest = turn, group, length = heappop(candidates)
            decision = self._round.decide(jobs[turn[2]])
            decisions.append(decision)
            self._looked.setdefault(group, set()).add(length)
            if not isinstance(decision, Start):
                for later in self._next_of([group]):
                    heappush(candidates, later)
                continue
            self._started[group, length] = turn
            if len(decisions) == waiting:
                return decisions  # most often one job waits, and starts
            if self._placement.closed() is None:
                self._near += islice(self._further, 1)
                candidates = self._candidates()
            else:
                break
        if len(decisions) == waiting:
            return decisions
        decided = frozenset(decision.job_id for decision in decisions)
        return [*decisions, HoldRest(queue=self._view.pending, decided=decided, reason=self._placement.rest_reason())]

    def _in_order(self, weighed_jobs_max: int) -> Iterator[RemainingTimeGroup]:
        """Yield the groups in the order of their heads; of many only those that could start on the empty cluster."""
        groups = list(islice(self._queue.groups(self._queue.heads), weighed_jobs_max + 1))
        if len(groups) <= weighed_jobs_max:
            return iter(groups)
        return (group for group in self._queue.groups(self._queue.heads) if self._is_possible(group))

    def _is_possible(self, group: RemainingTimeGroup) -> bool:
        return self._placement.free.impossible(group.request) is None

    def _candidates(self) -> list[Candidate]:
        """Return the first of each group that may start now."""
        self._widest_free, self._widest = self._placement.free.widest(), self._placement.places.widest()
        narrow = [gpus for gpus in self._queue.heads if gpus <= self._widest_free]
        groups = dict.fromkeys([*self._near, *self._queue.groups(narrow)])
        found = self._next_of(groups)
        heapify(found)
        return found

    def _next_of(self, groups: Iterable[RemainingTimeGroup]) -> list[Candidate]:
        """Return the next of each group, after the job that was looked at last, if it may start."""
        turn = self._latest[0] if self._latest is not None else None
        found: list[Candidate] = []
        sharing: list[Waiting] = []
        for group in groups:
            gpus, shape = group.request.gpus, group.shape
            may_be_alone = gpus <= self._widest_free and not self._placement.free.has_failed(shape)
            if not may_be_alone and (self._placement.limit.is_reached or gpus > self._widest):
                continue
            # What does not pay for a job on one GPU does not for a longer one; of gangs the limit lets no more share.
            most = 1 if may_be_alone or gpus == 1 else self._weighed_jobs_max + len(self._started)
            firsts = list(islice(group.firsts_after(turn, partial(self._has_failed, shape)), most))
            if firsts and may_be_alone:
                found.append((firsts[0][0], group, firsts[0][1]))
            elif firsts:
                sharing.append((group, firsts))
        return found + (self._that_may_share(sharing) if sharing else [])

    def _has_failed(self, shape: object, length: int) -> bool:
        return self._round.has_failed((shape, length))

    def _that_may_share(self, sharing: list[Waiting]) -> list[Candidate]:
        """Return the first of each group that may share."""
        pairs, gangs, others = self._placement.pairs, list[Waiting](), list[Waiting]()
        for group, firsts in sharing:
            (gangs if self._placement.is_free_gang(group.request) else others).append((group, firsts))
        answers = [pairs.may_share(group.request, _lengths(firsts)) for group, firsts in others]
        if gangs:
            answers += pairs.may_share_as_gangs(
                [group.request for group, _ in gangs], [_lengths(firsts) for _, firsts in gangs]
            )
        found: list[Candidate] = []
        for (group, firsts), may_share in zip(others + gangs, answers, strict=True):
            place = int(may_share.argmax())
            if may_share[place]:
                turn, length = firsts[place]
                found.append((turn, group, length))
        return found

    def _passed_over(self) -> int:
        """Return how many different jobs before the latest one were weighed, had each been looked at, and failed."""
        assert self._latest is not None
        turn, own, length = self._latest
        count = 0
        for group in self._near:
            if group.head is None or group.head > turn:
                break
            looked = self._looked.get(group, set())
            if group is own:
                passed = group.lengths_shorter(turn) - len(looked - {length})
            else:
                passed = group.lengths_before(turn) - len(looked)
            count += passed if passed and self._is_possible(group) else 0
        return count + sum(self._is_passed_again(*place) for place in self._started)

    def _is_passed_again(self, group: RemainingTimeGroup, length: int) -> bool:
        """Of jobs equal to one that was started, the next was passed over."""
        assert self._latest is not None
        if self._placement.limit.has_weighed((group.shape, length)):
            return False
        return group.has_between(length, self._started[group, length], self._latest[0])


def _lengths(firsts: Iterable[tuple[Turn, int]]) -> list[int]:
    return [length for _, length in firsts]
