"""A round over a long queue in order: a job that can neither start nor have room made for it is passed over.

A job that fails leaves nothing behind. So a job needs a look only if its width may find free GPUs, or if jobs that come
late enough hold as many GPUs as it needs, which is known for every width at once. All others wait for one and the same
reason, or in a short queue for that of their shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from scheduler_service.core.cluster_view.remaining_time_queue import GroupedQueue, RemainingTimeGroup, Turn
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, HoldRest, Start
from scheduler_service.core.records import Reason
from scheduler_service.policies.placement import long_running
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound, ImpossibleShapes

QUEUE_LONG_MIN: Final = 100
"""In shorter queues every job gets the reason of its shape; on small clusters they are looked at job by job."""
SHAPES_MAX: Final = 100_000
"""Shapes of jobs of which is kept whether they could start at all; beyond them all are forgotten."""


def decide_long_queue(view: SchedulingView, queue: GroupedQueue, round_: ExclusiveRound) -> list[Decision]:
    """Return the decisions about the jobs that start or have room made for them, and one for all others.

    Args:
        view: The cluster.
        queue: Its pending jobs by remaining time, or in the order of another policy.
        round_: Where single jobs may go.
    """
    jobs, decisions = view.index.pending_by_id, list[Decision]()
    round_.recall_impossible(_known_impossible(view))
    widest = round_.widest()
    candidates, has_shrunk, is_full = _candidates(queue, round_, None, widest), False, not widest
    while candidates:
        turn = heappop(candidates)
        if is_full and (held := _promise_vacant(queue, round_, turn, jobs[turn[2]])) is not None:
            decisions.append(held)
            has_shrunk = True
            if (later := queue.next_after(turn)) is not None:
                heappush(candidates, later)
            continue
        # A start takes chances and gives none: only those that had one before are asked whether they still do.
        if has_shrunk and not _has_chance(queue, round_, turn, widest=0 if is_full else round_.widest()):
            continue
        rooms_made, rooms_opened = round_.rooms_made, round_.rooms_opened
        decision = round_.decide(jobs[turn[2]])
        if round_.rooms_opened > rooms_opened:
            decisions.append(decision)
            candidates, has_shrunk = _candidates(queue, round_, turn, round_.widest()), False
        elif isinstance(decision, Start) or round_.rooms_made > rooms_made:
            # Nor does room that is made, where no GPU is left over: nearly always.
            decisions.append(decision)
            has_shrunk = True
            if not is_full and not round_.widest():
                # All that could have started were candidates; by width those are soon found that still have a chance.
                candidates, has_shrunk, is_full = _candidates(queue, round_, turn, 0), False, True
            elif (later := queue.next_after(turn)) is not None:
                heappush(candidates, later)
    if len(decisions) == len(jobs):
        return decisions
    decided = frozenset(decision.job_id for decision in decisions)
    is_short = len(jobs) < QUEUE_LONG_MIN
    reasons = _reasons_now(queue, round_) if is_short else round_.impossible_reasons(queue.all_groups())
    return [*decisions, HoldRest(queue=view.pending, decided=decided, reason=_rest_reason(round_), reasons=reasons)]


def _promise_vacant(queue: GroupedQueue, round_: ExclusiveRound, turn: Turn, job: PendingJob) -> Hold | None:
    """Promise a job the GPUs that others leave, as no GPU is free, or return None where that is not enough for it.

    Most that wait for such GPUs are told so again in every round: that takes a third of the time of `round_.decide`.
    """
    room_maker = round_.room_maker
    plan = room_maker.promise_vacant(job, queue.group_of(turn).shape) if room_maker is not None else None
    if plan is None:
        return None
    return Hold(job_id=turn[2], reason=Reason(code="GPU_RELEASING", gpu_ids=plan.releasing_gpu_ids))


def _candidates(queue: GroupedQueue, round_: ExclusiveRound, after: Turn | None, widest: int) -> list[Turn]:
    """Return the next job of every group that may start, or have room made for it, as a heap."""
    room_maker, found = round_.room_maker, list[Turn]()
    for gpus, heads in queue.heads.items():
        may_start = gpus <= widest
        for head in heads:
            if not may_start and (room_maker is None or not room_maker.may_make_room(gpus, head)):
                break
            group = queue.group_of(head)
            if not may_start and room_maker is not None and room_maker.has_failed(group.shape):
                continue
            if after is None or head > after:  # as nearly always: nothing of the group was looked at
                if not may_start or _needs_look(round_, group, head, may_start=True):
                    found.append(head)
            else:
                later = next((turn for turn, _ in group.firsts_after(after, lambda length: False)), None)
                if later is not None and _needs_look(round_, group, later, may_start=may_start):
                    found.append(later)
    heapify(found)
    return found


def _needs_look(round_: ExclusiveRound, group: RemainingTimeGroup, turn: Turn, *, may_start: bool) -> bool:
    if may_start and not round_.has_failed(group.shape):
        return True
    room_maker = round_.room_maker
    return (
        room_maker is not None
        and room_maker.may_make_room(group.request.gpus, turn)
        and not room_maker.has_failed(group.shape)
    )


def _has_chance(queue: GroupedQueue, round_: ExclusiveRound, turn: Turn, *, widest: int) -> bool:
    group = queue.group_of(turn)
    return _needs_look(round_, group, turn, may_start=group.request.gpus <= widest)


def is_grouped(view: SchedulingView) -> bool:
    """Return whether a round goes by groups of jobs: the queue is long, or the cluster large."""
    return len(view.pending) >= QUEUE_LONG_MIN or len(view.gpus) >= long_running.GPUS_IN_COLUMNS_MIN


def _reasons_now(queue: GroupedQueue, round_: ExclusiveRound) -> Mapping[object, Reason]:
    """Return why the jobs of each shape wait, as it is when the round is over."""
    return round_.wait_reasons([queue.group_of(head) for heads in queue.heads.values() for head in heads])


def _known_impossible(view: SchedulingView) -> ImpossibleShapes:
    """Return what was found of shapes while nodes and predictions were as they are."""
    name = (_known_impossible, view.nodes_per_job_max, view.index.prediction_changes.count)
    notes = view.index.counted_arrays.notes
    known = notes.get(name)
    if not isinstance(known, ImpossibleShapes) or len(known.looked_at) > SHAPES_MAX:
        for other in [one for one in notes if isinstance(one, tuple) and one[0] is _known_impossible]:
            del notes[other]
        notes[name] = known = ImpossibleShapes()
    return known


def _rest_reason(round_: ExclusiveRound) -> Reason:
    """Return why those wait that were not looked at."""
    return round_.closed() or Reason(code="TOO_FEW_PLACES", numbers={"gpus_with_place": round_.ledger.free_count()})
