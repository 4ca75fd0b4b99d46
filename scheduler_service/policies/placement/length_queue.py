"""A round over a long queue by remaining time: a job that can neither start nor have room made for it is passed over.

A job that fails leaves nothing behind. So a job needs a look only if its width may find free GPUs, or if jobs that run
long enough hold as many GPUs as it needs, which is known for every width at once. All others wait for one and the same
reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop
from typing import Final

from scheduler_service.core.decisions import Decision, HoldRest, Start
from scheduler_service.core.records import Reason
from scheduler_service.core.remaining_time_queue import RemainingTimeGroup, RemainingTimeQueue, Turn
from scheduler_service.core.view import SchedulingView
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound

QUEUE_LONG_MIN: Final = 100
"""Shorter queues are looked at job by job, so that every job gets a reason of its own."""


def decide_long_queue(view: SchedulingView, queue: RemainingTimeQueue, round_: ExclusiveRound) -> list[Decision]:
    """Return the decisions about the jobs that start or have room made for them, and one for all others.

    Args:
        view: The cluster.
        queue: Its pending jobs by remaining time.
        round_: Where single jobs may go.
    """
    jobs, decisions = view.index.pending_by_id, list[Decision]()
    candidates = _candidates(queue, round_, None)
    while candidates:
        turn = heappop(candidates)
        rooms_made = round_.rooms_made
        decision = round_.decide(jobs[turn[2]])
        if isinstance(decision, Start) or round_.rooms_made > rooms_made:
            decisions.append(decision)
            candidates = _candidates(queue, round_, turn)
    if len(decisions) == len(view.pending):
        return decisions
    decided = frozenset(decision.job_id for decision in decisions)
    return [*decisions, HoldRest(queue=view.pending, decided=decided, reason=_rest_reason(round_))]


def _candidates(queue: RemainingTimeQueue, round_: ExclusiveRound, after: Turn | None) -> list[Turn]:
    """Return the next job of every group that may start, or have room made for it, as a heap."""
    widest = round_.widest()
    found: list[Turn] = []
    for gpus, heads in queue.heads.items():
        may_start = gpus <= widest
        if not may_start and not round_.may_make_room(gpus, heads[0][0]):
            continue
        for head in heads:
            if not may_start and not round_.may_make_room(gpus, head[0]):
                break
            group = queue.group_of(head)
            turn = next(_turns(group, after), None)
            if turn is not None and _needs_look(round_, group, turn, may_start=may_start):
                found.append(turn)
    heapify(found)
    return found


def _needs_look(round_: ExclusiveRound, group: RemainingTimeGroup, turn: Turn, *, may_start: bool) -> bool:
    if may_start and not round_.has_failed(group.shape):
        return True
    return round_.may_make_room(group.request.gpus, turn[0]) and not round_.has_no_room(group.shape)


def _turns(group: RemainingTimeGroup, after: Turn | None) -> Iterator[Turn]:
    return (turn for turn, _ in group.firsts_after(after, lambda length: False))


def _rest_reason(round_: ExclusiveRound) -> Reason:
    """Return why those wait that were not looked at."""
    return round_.closed() or Reason(code="TOO_FEW_PLACES", numbers={"gpus_with_place": round_.ledger.free_count()})
