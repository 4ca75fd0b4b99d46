"""How long jobs still run alone, and the order that follows: shortest first, with optional aging.

Source:
    The SJF-BSBF paper, Algorithm 1 lines 1-3: L_k = iteration time x remaining iterations, ascending. The iteration
    time at a micro-batch (Eq. 7) comes with the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf

from scheduler_service.core.cluster_view.step_times import passes_of as passes_of
from scheduler_service.core.cluster_view.step_times import remaining_ms_of as remaining_ms_of
from scheduler_service.core.cluster_view.step_times import step_ms_of as step_ms_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.ordering.waiting_list import CandidateTable, explained_holds


def has_aged(view: SchedulingView, submitted_at_ms: int, aging_ms: int) -> bool:
    """Return whether a job was submitted so long ago that it goes first; an aging of 0 = never."""
    return 0 < aging_ms <= view.now_ms - submitted_at_ms


def shortest_first(view: SchedulingView, aging_ms: int) -> list[PendingJob]:
    """Return the pending jobs in order: the aged by submission, then by remaining time, the unknown last.

    Several kinds of GPU: the remaining time is that on the fastest one.
    """
    devices = sorted({device for device, *_ in view.index.inventory.count})
    step_ms_by_shape: dict[tuple[str, int, int], float | None] = {}

    def order(job: PendingJob) -> tuple[float, int, str]:
        request = job.request
        identity = (job.submitted_at_ms, request.job_id)
        if has_aged(view, job.submitted_at_ms, aging_ms):
            return (-1.0, *identity)
        shape = (request.key, request.gpus, request.global_batch_size)
        if shape not in step_ms_by_shape:
            step_ms_by_shape[shape] = _fastest_step_ms(view, request, devices)
        step_ms = step_ms_by_shape[shape]
        known = step_ms is not None and request.steps_total > 0
        return (max(request.steps_total - job.steps_done, 0) * (step_ms or 0.0) if known else inf, *identity)

    return sorted(view.pending, key=order)


def _fastest_step_ms(view: SchedulingView, request: JobRequest, devices: list[str]) -> float | None:
    found = (step_ms_of(request, view.predictions.job(request.key, device), gpus=request.gpus) for device in devices)
    return min((step_ms for step_ms in found if step_ms is not None), default=None)


def decide_shortest_first(
    view: SchedulingView,
    aging_ms: int,
    decide: Callable[[PendingJob], Decision],
    is_impossible: Callable[[JobRequest], bool],
    table: CandidateTable,
    *,
    closed: Callable[[], Reason | None] = lambda: None,
) -> list[Decision]:
    """Decide about every pending job, shortest first; holds for one and the same reason become one.

    An aged job that waits lets none pass, unless it could not start on the empty cluster either. Once no job can
    start any more, the rest of the queue is not looked at, unless the view asks why.

    Args:
        view: The cluster.
        aging_ms: See `has_aged`.
        decide: Decides about one job.
        is_impossible: Returns whether a job could never start.
        table: How every GPU looks for a job that waits.
        closed: Returns why no job can start any more, or None while one may.
    """
    may_close = not aging_ms and not view.explain
    reason = closed() if may_close else None
    if reason is not None and view.pending:
        return [HoldRest(queue=view.pending, reason=reason)]
    decisions: list[Decision] = []
    waiting: dict[int, tuple[Reason, list[str]]] = {}
    jobs = shortest_first(view, aging_ms)
    for position, job in enumerate(jobs):
        reason = closed() if may_close else None
        if reason is not None:
            decided = frozenset(one.request.job_id for one in jobs[:position])
            return [*decisions, *_folded(waiting), HoldRest(queue=view.pending, decided=decided, reason=reason)]
        decision = decide(job)
        if isinstance(decision, Hold) and not decision.candidates:
            waiting.setdefault(id(decision.reason), (decision.reason, []))[1].append(job.request.job_id)
        else:
            decisions.append(decision)
        blocks = isinstance(decision, Hold) and has_aged(view, job.submitted_at_ms, aging_ms)
        if blocks and not is_impossible(job.request) and position + 1 < len(jobs):
            numbers = {"aging_ms": aging_ms}
            reason = Reason(code="BEHIND_AGED_JOB", numbers=numbers, job_ids=(job.request.job_id,))
            later = jobs[position + 1 :]
            if view.explain:
                return [*decisions, *_folded(waiting), *explained_holds(later, reason, table)]
            waiting[id(reason)] = (reason, [one.request.job_id for one in later])
            break
    return [*decisions, *_folded(waiting)]


def _folded(waiting: Mapping[int, tuple[Reason, list[str]]]) -> Iterator[HoldMany]:
    return (HoldMany(job_ids=tuple(ids), reason=reason) for reason, ids in waiting.values())
