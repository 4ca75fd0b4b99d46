"""Watches jobs that share on trial: what each loses is measured, and the incoming job leaves where a consent breaks.

A consent is broken when the newest windows of a job, at least two in a row and all kept ones on average, are slower
than it accepts; where nodes report often, not before the kept ones are four seconds. The pair is remembered for a day
with what was measured of it. A trial is passed when both jobs have kept theirs for some windows; from then on the pair
is a measured one, and still watched.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from statistics import fmean, pstdev

from scheduler_service.core.cluster_view.capacity import reserved_bytes
from scheduler_service.core.decisions import Decision
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.trial_start import TRIAL_MS, limited
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Level, Phase, Reason
from scheduler_service.core.state import ClusterState
from scheduler_service.core.trial_sharing.first_measurements import look_at_late_measurement
from scheduler_service.core.trial_sharing.trial_pauses import take_off

WINDOWS_TO_BREAK = 2
"""Windows in a row above a consent: it is broken for longer than one window."""
WINDOWS_TO_PASS = 4
WINDOWS_KEPT = 8
BREAK_MS_LEAST = 4_000
"""What breaks a consent lasts so long: a few steps in a short window differ by more than many in a long one."""
UNMEASURED_MS_MAX = 10 * TRIAL_MS
"""A trial in which a job makes no step for so long is over."""
REMEMBERED_MS = 86_400_000
"""For so long a pair that broke a consent is not tried again."""


def note_trial_window(state: ClusterState, job_id: str, slowdown_ratio: float, step: EventEffects) -> None:
    """Take in what a sound window says of a job that shares on trial, and judge."""
    job = state.jobs[job_id]
    if job.trial is None or job.phase is not Phase.RUNNING:
        return
    ratios = (*job.trial.ratios, slowdown_ratio)[-WINDOWS_KEPT:]
    state.put_job(job.changed(trial=replace(job.trial, ratios=ratios)))
    _judge(state, job_id if job.trial.is_incoming else job.trial.other_job_id, step)


def judge_due_trials(state: ClusterState, step: EventEffects) -> None:
    """Decide trials whose time is over, and forget pairs that broke long ago."""
    for job_id in tuple(state.on_trial):
        trial = state.jobs[job_id].trial
        if trial is None or trial.is_passed or trial.until_ms > state.now_ms:
            continue
        if trial.is_sharing:
            _judge(state, job_id, step)
        else:
            look_at_late_measurement(state, state.jobs[job_id], step)
    step.is_decision_due |= state.predictions.forget_broken_trials(state.now_ms - REMEMBERED_MS)


def _judge(state: ClusterState, incoming_id: str, step: EventEffects) -> None:
    incoming = state.jobs[incoming_id]
    if incoming.trial is None or incoming.phase is not Phase.RUNNING:
        return
    resident = state.jobs[incoming.trial.other_job_id]
    if resident.trial is None or not resident.trial.is_sharing:
        return
    is_over = state.now_ms >= incoming.trial.until_ms
    is_due = is_over and not incoming.trial.is_passed
    windows_least = _windows_to_break(state.report_interval_ms)
    broken = [job for job in (incoming, resident) if _is_broken(job, windows_least=windows_least, is_over=is_due)]
    if broken:
        _break(state, incoming, resident, broken, step)
    elif incoming.trial.is_passed:
        _tell(state, incoming, resident, "TRIAL_PASSED")
    elif all(_has_kept(job, is_over=is_over) for job in (incoming, resident)):
        _pass(state, incoming, resident, step)
    elif is_over:
        _prolong(state, incoming, resident, step)
    else:
        _tell(state, incoming, resident, "ON_TRIAL")


def _ratios(job: JobRecord) -> tuple[float, ...]:
    return job.trial.ratios if job.trial is not None else ()


def _windows_to_break(report_interval_ms: int) -> int:
    return min(max(WINDOWS_TO_BREAK, ceil(BREAK_MS_LEAST / report_interval_ms)), WINDOWS_KEPT)


def _is_broken(job: JobRecord, *, windows_least: int, is_over: bool) -> bool:
    ratios, accepted = _ratios(job), job.request.max_slowdown_ratio
    if not ratios or fmean(ratios) <= accepted:
        return False
    return is_over or (len(ratios) >= windows_least and min(ratios[-WINDOWS_TO_BREAK:]) > accepted)


def _has_kept(job: JobRecord, *, is_over: bool) -> bool:
    ratios = _ratios(job)
    if is_over:
        return bool(ratios)
    return len(ratios) >= WINDOWS_TO_PASS and fmean(ratios) + pstdev(ratios) <= job.request.max_slowdown_ratio


def _pass(state: ClusterState, incoming: JobRecord, resident: JobRecord, step: EventEffects) -> None:
    for job in (incoming, resident):
        if job.trial is not None:
            kept = f"{fmean(_ratios(job)):.1%} slower of {job.request.max_slowdown_ratio:.1%} accepted"
            passed = replace(job.trial, is_passed=True)
            state.put_job(with_history(job, at_ms=state.now_ms, kind="trial", message=f"passed: {kept}", trial=passed))
    _tell(state, state.jobs[incoming.job_id], resident, "TRIAL_PASSED")
    step.is_decision_due = True


def _prolong(state: ClusterState, incoming: JobRecord, resident: JobRecord, step: EventEffects) -> None:
    """Wait for the first steps of both jobs, for a bounded time."""
    trial = incoming.trial
    if trial is None:
        return
    if state.now_ms - trial.since_ms >= UNMEASURED_MS_MAX:
        _leave(state, incoming, resident, Reason(code="TRIAL_UNMEASURED", job_ids=(resident.job_id,)), step)
        return
    until_ms = state.now_ms + TRIAL_MS
    state.put_job(incoming.changed(trial=replace(trial, until_ms=until_ms)))
    step.wakes_at_ms.append(until_ms)


def _tell(state: ClusterState, incoming: JobRecord, resident: JobRecord, code: str) -> None:
    """Keep where the trial stands as the reason of the incoming job."""
    trial = incoming.trial
    own, others = _ratios(incoming), _ratios(resident)
    if trial is None or not own:
        return
    numbers = {
        "until_at_ms": float(trial.until_ms),
        "slowdown_ratio": fmean(own),
        "spread_ratio": pstdev(own),
        "max_slowdown_ratio": incoming.request.max_slowdown_ratio,
        **({"neighbour_slowdown_ratio": fmean(others)} if others else {}),
    }
    reason = Reason(code=code, numbers=numbers, job_ids=(resident.job_id,), gpu_ids=incoming.gpu_ids)
    state.put_job(incoming.changed(reason=reason))
    before = state.decisions.get(incoming.job_id)
    candidates = before.candidates if before is not None else ()
    state.decisions.record(Decision(job_id=incoming.job_id, reason=reason, candidates=candidates))


def _break(
    state: ClusterState, incoming: JobRecord, resident: JobRecord, broken: list[JobRecord], step: EventEffects
) -> None:
    place = state.predictions.name_for(state.gpus[incoming.gpu_ids[0]].gpu)
    for victim in broken:
        other = resident if victim is incoming else incoming
        slowdown_ratio = fmean(_ratios(victim))
        state.predictions.note_broken_trial(
            victim.request.key, other.request.key, place, slowdown_ratio, at_ms=state.now_ms
        )
    worst = max(broken, key=lambda job: fmean(_ratios(job)) - job.request.max_slowdown_ratio)
    numbers = {"slowdown_ratio": fmean(_ratios(worst)), "max_slowdown_ratio": worst.request.max_slowdown_ratio}
    other_id = resident.job_id if worst is incoming else incoming.job_id
    reason = Reason(code="TRIAL_BROKEN", numbers=numbers, job_ids=(worst.job_id, other_id), gpu_ids=incoming.gpu_ids)
    _leave(state, incoming, resident, reason, step)


def _leave(state: ClusterState, incoming: JobRecord, resident: JobRecord, reason: Reason, step: EventEffects) -> None:
    """Take the incoming job away; both remember that this trial broke."""
    for job in (resident, incoming):
        broken = with_history(job, at_ms=state.now_ms, kind="trial", message=describe_reason(reason))
        state.put_job(limited(broken.counting(broken_trials=1)))
    take_off(state, state.jobs[incoming.job_id], state.jobs[resident.job_id], reason, step)
    step.is_decision_due = True


def refit_memory(state: ClusterState, job_id: str, step: EventEffects) -> None:
    """Keep for a job on one GPU what was measured of it: less than all of the GPU, or more than at its start.

    Where a peak has grown into what is left of the GPU no more, a trial is over.
    """
    job = state.jobs[job_id]
    if len(job.assignments) != 1 or job.phase is not Phase.RUNNING:
        return
    gpu = state.gpus.get(job.assignments[0].gpu_id)
    if gpu is None:
        return
    state.predictions.raise_peak(
        job.request.key,
        gpu.gpu.device,
        micro_batch_size=job.shape.micro_batch_size,
        memory_peak_bytes=job.measured.attempt_peak_bytes,
    )
    prediction = state.predictions.job(job.request.key, gpu.gpu.device)
    is_measured = prediction is not None and prediction.level is Level.OBSERVED
    if not is_measured and job.trial is None:
        return
    wanted = reserved_bytes(job.request, prediction, job.shape.micro_batch_size, gpu.gpu) if is_measured else None
    wanted = max(wanted or 0, job.measured.attempt_peak_bytes) if wanted is not None or job.trial else 0
    kept = job.shape.memory_reserved_bytes
    # What others may have of it meanwhile is not its own to grow into.
    is_shared_out = job.shape.memory_surge is not None
    available = kept if is_shared_out else gpu.gpu.memory_bytes - gpu.memory_reserved_bytes + kept
    if wanted > available and _take_from_incoming(state, job, wanted - available):
        available = wanted
    if (is_measured and wanted < kept) or kept < wanted <= available:
        state.put_job(job.changed(shape=job.shape.changed(memory_reserved_bytes=wanted)))
        step.is_decision_due = True
    elif wanted > available and job.trial is not None:
        _break_for_memory(state, job, needed_bytes=wanted, free_bytes=available, step=step)


def _take_from_incoming(state: ClusterState, job: JobRecord, more_bytes: int) -> bool:
    """Let a job grow into what is kept for an incoming one that was not measured yet, and does not use it."""
    if job.trial is None or job.trial.is_sharing or job.trial.is_incoming:
        return False
    incoming = state.jobs[job.trial.other_job_id]
    left_bytes = incoming.shape.memory_reserved_bytes - more_bytes
    if left_bytes <= incoming.measured.attempt_peak_bytes:
        return False
    state.put_job(incoming.changed(shape=incoming.shape.changed(memory_reserved_bytes=left_bytes)))
    return True


def _break_for_memory(
    state: ClusterState, job: JobRecord, *, needed_bytes: int, free_bytes: int, step: EventEffects
) -> None:
    if job.trial is None:
        return
    other = state.jobs[job.trial.other_job_id]
    incoming, resident = (job, other) if job.trial.is_incoming else (other, job)
    if incoming.phase is Phase.RUNNING:
        numbers = {"needed_bytes": float(needed_bytes), "free_bytes": float(free_bytes)}
        _leave(state, incoming, resident, Reason(code="TRIAL_MEMORY", numbers=numbers, job_ids=(job.job_id,)), step)
