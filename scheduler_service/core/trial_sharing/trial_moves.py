"""A running job moves next to another one on trial, so that a job which must be measured alone gets its GPU.

Jobs of which nothing reliable is predicted start alone. While all GPUs hold one job each, the next such job would wait
for an end, although two of those that run, both measured alone by now, might share one GPU. So where no GPU is free and
a job waits that was never measured, one pair of running jobs is joined on trial, if that pays: the waiting job runs
sooner by the time that the two run together, and that must be more than what the two lose to each other and to the
move. Only a job that has written a checkpoint moves. A policy that shares GPUs asks for this by `trial_moves`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from scheduler_service.core.cluster_view.capacity import resident_on, samples_per_gpu
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.step_times import remaining_ms_of, restart_ms_of
from scheduler_service.core.cluster_view.view import GpuView, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest, Migrate
from scheduler_service.core.records import Assignment, JobPrediction, JobRequest, Reason
from scheduler_service.core.sharing.sharing_consent import consented_slowdowns
from scheduler_service.core.trial_sharing.first_measurement_rules import may_share_on_trial

JOBS_LOOKED_AT_MAX = 64
"""Running jobs that are weighed as the one that moves, and as the one that it joins."""
GAIN_RATIO_MIN = 1.5
"""The waiting job must gain so many times what the two that join lose: all three are estimates."""


class _Candidate(NamedTuple):
    """A running job that could share on trial, and how long it still runs alone."""

    job: RunningJob
    entry: GpuView
    remaining_ms: float


class _Join(NamedTuple):
    gain_ms: float
    move: Migrate


def trial_moves(view: SchedulingView, decisions: Sequence[Decision]) -> tuple[Migrate, ...]:
    """Return the move that lets an unmeasured job start, after what a policy has decided; at most one.

    Args:
        view: What the policy saw.
        decisions: Its answer.
    """
    if not view.can_move or not view.index.checkpointed_job_ids or view.index.free_gpu_ids:
        return ()
    if not all(isinstance(one, Hold | HoldMany | HoldRest) for one in decisions):
        return ()
    waiting = next(unmeasured_jobs(view), None)
    entries = list(islice(_entries_that_may_share(view), JOBS_LOOKED_AT_MAX)) if waiting is not None else []
    if waiting is None or len(entries) < 2:
        return ()
    candidates = [_candidate(view, entry) for entry in entries]
    ledger = Ledger(view)
    joins = [
        join
        for mover in candidates
        if mover.job.has_checkpoint
        and len(mover.job.assignments) == 1
        and _may_take_over(view, waiting.request, mover.entry)
        for host in candidates
        if host.job is not mover.job and (join := _weighed(view, ledger, mover, host)) is not None
    ]
    best = max(joins, key=lambda join: (join.gain_ms, join.move.job_id), default=None)
    return () if best is None else (best.move,)


def unmeasured_jobs(view: SchedulingView) -> Iterator[PendingJob]:
    """Yield those of the first waiting jobs that were never measured, and may share on trial once they were."""
    devices, measured_alone = {device for device, *_ in view.index.inventory.gpus}, view.predictions.measured_alone
    for job in islice(view.pending, JOBS_LOOKED_AT_MAX):
        key = job.request.key
        if may_share_on_trial(job.request) and not any((key, device) in measured_alone for device in devices):
            yield job


def _may_take_over(view: SchedulingView, request: JobRequest, entry: GpuView) -> bool:
    prediction = view.predictions.job(request.key, entry.gpu.device)
    return resident_on(request, prediction, samples_per_gpu(request, 1), entry.gpu) is not None


def _entries_that_may_share(view: SchedulingView) -> Iterator[GpuView]:
    """Find the GPUs whose one job was measured alone and is of known length."""
    for entry in measured_entries(view):
        job = view.index.reported[entry.job_ids[0]]
        if _remaining_ms(job, view.predictions.job(job.request.key, entry.gpu.device)) is not None:
            yield entry


def measured_entries(view: SchedulingView) -> Iterator[GpuView]:
    """Yield the GPUs whose one job was measured alone; reports tell it, without what has passed since."""
    measured_alone = view.predictions.measured_alone
    for gpu_id in sorted(view.index.single_job_gpu_ids) if measured_alone else ():
        entry = view.gpus[gpu_id]
        job = view.index.reported[entry.job_ids[0]]
        key, device = job.request.key, entry.gpu.device
        if job.request.gpus != 1 or job.is_stopping or (key, device) not in measured_alone:
            continue
        prediction = view.predictions.job(key, device)
        if prediction is not None and job.micro_batch_size in prediction.measured_micro_batch_sizes:
            yield entry


def _candidate(view: SchedulingView, entry: GpuView) -> _Candidate:
    job = view.running[entry.job_ids[0]]
    prediction = view.predictions.job(job.request.key, entry.gpu.device)
    return _Candidate(job, entry, _remaining_ms(job, prediction) or 0.0)


def _remaining_ms(job: RunningJob, prediction: JobPrediction | None) -> float | None:
    steps_done, micro_batch_size = job.steps_done, job.micro_batch_size
    return remaining_ms_of(job.request, prediction, steps_done=steps_done, gpus=1, micro_batch_size=micro_batch_size)


def _weighed(view: SchedulingView, ledger: Ledger, mover: _Candidate, host: _Candidate) -> _Join | None:
    """Return the move of one job next to another and what it gains; None = it may not be, or does not pay."""
    gpu, there = host.entry.gpu, ledger.residents(host.entry.gpu.gpu_id)
    if gpu.device != mover.entry.gpu.device or host.entry.node_id != mover.entry.node_id:
        return None
    prediction = view.predictions.job(mover.job.request.key, gpu.device)
    incoming = resident_on(mover.job.request, prediction, mover.job.micro_batch_size, gpu)
    if incoming is None or incoming.memory_reserved_bytes > ledger.memory_free_bytes(host.entry):
        return None
    consented = consented_slowdowns(incoming, there, gpu, view.predictions)
    if isinstance(consented, Reason):
        return None
    (_, own), (_, others) = consented
    overlap_ms = min(mover.remaining_ms * (1 + own.ratio), host.remaining_ms * (1 + others.ratio))
    lost_ms = overlap_ms * (own.ratio / (1 + own.ratio) + others.ratio / (1 + others.ratio)) + restart_ms_of(
        mover.job, started_at_ms=mover.job.started_at_ms, move_ms=mover.job.move_ms, now_ms=view.now_ms
    )
    if overlap_ms < GAIN_RATIO_MIN * lost_ms:
        return None
    numbers = {"gained_ms": overlap_ms - lost_ms, "slowdown_ratio": own.ratio, "neighbour_slowdown_ratio": others.ratio}
    reason = Reason(
        code="MOVES_TO_SHARE",
        numbers=numbers,
        job_ids=(host.job.request.job_id,),
        gpu_ids=(gpu.gpu_id,),
    )
    move = Migrate(job_id=mover.job.request.job_id, reason=reason, assignments=(Assignment(gpu_id=gpu.gpu_id, rank=0),))
    return _Join(overlap_ms - lost_ms, move)
