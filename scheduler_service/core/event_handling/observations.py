"""Learns from progress reports: step times alone and shared, slowdowns of jobs, pairs and GPUs.

The first window of an attempt is its warm-up and teaches nothing. One in which others used a GPU is doubtful: see
`measured_averages`.

Source: OJPP Eq. 18 for the moving average of a device (the past weighs 0.9).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from scheduler_service.core.cluster_view.capacity import is_reliable
from scheduler_service.core.cluster_view.replica_groups import has_choice
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import JobProgressed
from scheduler_service.core.gangs.stragglers import look_for_straggler
from scheduler_service.core.jobs.job_parts import JobMoves, ReportedValues
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.attempts import accruals
from scheduler_service.core.lifecycle.outcomes import WINDOWS_LOOKED_AT, tell_progress
from scheduler_service.core.lifecycle.training_ends import ask_about_end, with_loss, with_script_total
from scheduler_service.core.predictions.measured_averages import moving_average
from scheduler_service.core.predictions.pair_refreshes import JOBS_LOOKED_AT_MAX, note_measured
from scheduler_service.core.predictions.pair_store import MOVED_RATIO_MIN
from scheduler_service.core.predictions.speed_fits import ask_about_speed, ask_about_task_speed
from scheduler_service.core.records import Level, Phase
from scheduler_service.core.sharing.pausing import LENT_CODE
from scheduler_service.core.state import ClusterState
from scheduler_service.core.trial_sharing.first_measurements import go_on_measuring
from scheduler_service.core.trial_sharing.trials import note_trial_window, refit_memory

# A name of the module is found four times as fast as a member of its enum, on every fact.
_RUNNING: Final = Phase.RUNNING


def observe(state: ClusterState, job: JobRecord, report: JobProgressed, step: EventEffects) -> None:
    """Store what a report says of the job itself, then what its window says about sharing."""
    has_window = report.window_steps > 0 and report.window_ms > 0
    windows_seen = job.measured.windows_seen + has_window
    measured, slowdown_ratio = job.measured, None
    measurements: dict[str, Any] = {
        "windows_seen": windows_seen,
        "attempt_peak_bytes": max(measured.attempt_peak_bytes, report.memory_peak_bytes),
        "paused_ms": max(measured.paused_ms, report.paused_ms),
    }
    changes = accruals(job, state.now_ms)
    changes["steps_done"] = max(job.steps_done, report.steps_done)
    changes["checkpoint_step"] = max(job.checkpoint_step, report.checkpoint_step)
    if has_window and windows_seen > 1 and job.phase is _RUNNING:
        others = _training_neighbours(state, job, report)
        if _is_clean(state, job, report, others):
            if job.trial is not None:
                slowdown_ratio = _sound_slowdown_ratio(state, job, report, others)
            # Next to a job that starts up, or that was never measured, nothing is told of the two.
            if not others or job.trial is None or job.trial.is_sharing:
                changes["solo_step_ms"], learned = _learned(state, job, report, others, step)
                measurements |= learned
    if has_window and job.moves.moved_at_ms and job.phase is _RUNNING:
        changes["moves"] = _with_cost_of_move(state, job, report)
    is_newest = report.steps_done >= job.steps_done
    # A log that counts beyond the stated steps stands at the last but one of them while the job goes on.
    if report.steps_done > job.steps_done or (is_newest and has_window):
        measurements["progressed_ran_ms"], measurements["stalled_since_ms"] = changes["ran_ms"], 0
    if is_newest and has_window:
        changes["step_ms"] = report.window_ms / report.window_steps
    changes["reported"] = _reported(job, report, is_newest=is_newest)
    changes["measured"] = measured.with_values(measurements)
    job = job.with_values(changes)
    job = with_loss(job, report) if job.request.target_loss else with_script_total(job, report)
    state.put_job(tell_progress(state, job, step))
    if "moves" in changes and not job.moves.moved_at_ms:
        state.keys.note_move(state.jobs[job.job_id])
    _look_further(state, job, report, step)
    if slowdown_ratio is not None:
        note_trial_window(state, job.job_id, slowdown_ratio, step)


def _look_further(state: ClusterState, job: JobRecord, report: JobProgressed, step: EventEffects) -> None:
    """Pass a report to those that may learn from it; most jobs have no target loss and no slow rank."""
    if job.reported.training_end is not None:
        ask_about_end(state, job.job_id, step)
    refit_memory(state, job.job_id, step)
    if job.trial is not None:
        go_on_measuring(state, job.job_id, step)
    if report.rank_step_ms:
        look_for_straggler(state, job.job_id, report, step)


def _with_cost_of_move(state: ClusterState, job: JobRecord, report: JobProgressed) -> JobMoves:
    """Return what the move to the present attempt cost: the time since the stop, less the steps made since."""
    steps = report.steps_done - max(job.checkpoint_step, 0)
    if steps <= 0:
        return job.moves
    lost_ms = state.now_ms - job.moves.moved_at_ms - steps * report.window_ms / report.window_steps
    return job.moves.changed(moved_at_ms=0, move_ms=max(1, round(lost_ms)))


def _reported(job: JobRecord, report: JobProgressed, *, is_newest: bool) -> ReportedValues:
    """Return the newest values; a report of fewer steps than are known only tells of a peak."""
    before = job.reported
    peak_bytes = max(before.memory_peak_bytes, report.memory_peak_bytes)
    loss = report.loss if is_newest and report.loss is not None else before.loss
    utilization_ratio = before.utilization_ratio
    if is_newest and report.utilization_ratio is not None:
        utilization_ratio = report.utilization_ratio
    # Most reports of a simulation say the same again.
    if (loss, utilization_ratio, peak_bytes) == (before.loss, before.utilization_ratio, before.memory_peak_bytes):
        return before
    return before.changed(loss=loss, utilization_ratio=utilization_ratio, memory_peak_bytes=peak_bytes)


def _training_neighbours(state: ClusterState, job: JobRecord, report: JobProgressed) -> tuple[str, ...]:
    """Return the co-located jobs; of a job that is measured while the other one is paused there are none."""
    others = state.occupancy.neighbours(job)
    if not others or job.trial is None or job.trial.is_sharing:
        return others
    return tuple([other for other in others if not _stands_still(state.jobs[other], report.at_ms)])


def _stands_still(job: JobRecord, now_ms: int) -> bool:
    """A job that is paused for a measurement was so until now for sure: neither order nor node has let it go on."""
    pause = job.pause
    if pause is None or pause.is_resuming or job.phase is not Phase.PAUSED or pause.reason.code != LENT_CODE:
        return False
    return now_ms <= pause.ordered_at_ms + pause.paused_ms_max


def _is_clean(state: ClusterState, job: JobRecord, report: JobProgressed, others: Sequence[str]) -> bool:
    """A window counts when it lies after the last change of the co-located jobs and all of them train."""
    if report.at_ms - max(report.window_ms, report.window_span_ms) < job.measured.neighbours_since_ms:
        return False
    return all(state.jobs[other].phase is _RUNNING for other in others)


def _sound_slowdown_ratio(
    state: ClusterState, job: JobRecord, report: JobProgressed, others: Sequence[str]
) -> float | None:
    """Return by how much a window was slower than the job alone; None = no sound measurement says it."""
    gpu = state.gpus.get(job.assignments[0].gpu_id)
    if gpu is None or len(others) != 1 or report.quality_flags:
        return None
    solo_step_ms = state.predictions.sound_solo_step_ms(job.request.key, gpu.gpu.device, **_shape(job))
    return report.window_ms / report.window_steps / solo_step_ms - 1.0 if solo_step_ms else None


def _learned(
    state: ClusterState, job: JobRecord, report: JobProgressed, others: Sequence[str], step: EventEffects
) -> tuple[float, dict[str, Any]]:
    """Return the job's step time alone, and what a clean window changes of its measurements."""
    gpu = state.gpus.get(job.assignments[0].gpu_id)
    if gpu is None:
        return job.solo_step_ms, {}
    device, key, shape = gpu.gpu.device, job.request.key, _shape(job)
    if not others:
        return _learned_alone(state, job, report, device, step)
    solo = state.predictions.solo_step_ms(key, device, **shape) if key else None
    sound = state.predictions.sound_solo_step_ms(key, device, **shape) if key else None
    solo_step_ms = solo or job.solo_step_ms
    if not solo_step_ms:
        return job.solo_step_ms, {}
    is_doubtful = bool(report.quality_flags) or (solo is not None and sound is None)
    slowdown_ratio = report.window_ms / report.window_steps / solo_step_ms - 1.0
    if len(others) == 1 and key and state.jobs[others[0]].request.key:
        other = state.jobs[others[0]].request.key
        place = state.predictions.name_for(gpu.gpu)
        moved = state.predictions.observe_pair(key, other, place, slowdown_ratio, is_doubtful=is_doubtful)
        if moved is None or moved >= MOVED_RATIO_MIN:
            note_measured(state, place)
            state.predictions.fit_curve(device, at_ms=state.now_ms)
    _update_gpus(state, job, slowdown_ratio)
    observed = moving_average(job.measured.observed_slowdown_ratio, slowdown_ratio)
    return solo_step_ms, {"observed_slowdown_ratio": observed}


def _shape(job: JobRecord) -> dict[str, int]:
    """Return at which numbers and micro-batch a job runs, as step times are kept."""
    return {
        "gpus": len(job.assignments),
        "micro_batch_size": job.shape.micro_batch_size,
        "servers": job.request.replicas.servers,
    }


def _learned_alone(
    state: ClusterState, job: JobRecord, report: JobProgressed, device: str, step: EventEffects
) -> tuple[float, dict[str, Any]]:
    key, gpus = job.request.key, len(job.assignments)
    is_doubtful = bool(report.quality_flags)
    window_step_ms = report.window_ms / report.window_steps
    step_ms = job.solo_step_ms or window_step_ms if is_doubtful else window_step_ms
    if key:
        known_before = state.predictions.job(key, device)
        is_new = state.predictions.observe_solo(
            key,
            device,
            **_shape(job),
            steps=report.window_steps,
            window_ms=report.window_ms,
            is_doubtful=is_doubtful,
        )
        step_ms = state.predictions.solo_step_ms(key, device, **_shape(job)) or step_ms
        # A policy that lets a job run on a few numbers of GPUs, or of servers, goes on to the next one.
        step.is_decision_due |= is_new and has_choice(job.request)
        if state.predictions.job(key, device) is not known_before:
            state.touch_jobs_of(key)
        if job.request.replicas.servers:
            ask_about_task_speed(state, job.request, device, step)
        else:
            ask_about_speed(state, key, device, step)
    _update_gpus(state, job, 0.0)
    before = job.measured
    if is_doubtful:
        return step_ms, {}
    if key and gpus == 1:
        step.is_decision_due |= _measure_alone(state, job, report, device)
    known = before.solo_utilization_ratio if report.utilization_ratio is None else report.utilization_ratio
    return step_ms, {
        "solo_window_ms": before.solo_window_ms + report.window_ms,
        "solo_utilization_ratio": known,
        "solo_windows_step_ms": (*before.solo_windows_step_ms, window_step_ms)[-WINDOWS_LOOKED_AT:],
    }


def _measure_alone(state: ClusterState, job: JobRecord, report: JobProgressed, device: str) -> bool:
    """Let a window say what is known of the job; return whether other jobs may now share with it that could not."""
    predictions, key = state.predictions, job.request.key
    before = predictions.job(key, device)
    predictions.observe_alone(
        key,
        device,
        micro_batch_size=job.shape.micro_batch_size,
        memory_peak_bytes=max(job.measured.attempt_peak_bytes, report.memory_peak_bytes),
        utilization_ratio=report.utilization_ratio,
        servers=job.request.replicas.servers,
    )
    after = predictions.job(key, device)
    if after is before or after is None:
        return False
    if before is not None and job.shape.micro_batch_size in before.measured_micro_batch_sizes:
        # Windows that follow the first one change little, unless they contradict what was predicted.
        return before.level is not Level.OBSERVED and after.utilization_ratio != before.utilization_ratio
    return not is_reliable(before) or _has_unknown_partner(state, key, device)


def _has_unknown_partner(state: ClusterState, key: str, device: str) -> bool:
    """Return whether a waiting job might share with this one on trial only."""
    waiting = (state.jobs[job_id].request.key for job_id in islice(state.in_phase(Phase.PENDING), JOBS_LOOKED_AT_MAX))
    pairs = ((one, two) for other in dict.fromkeys(waiting) for one, two in ((key, other), (other, key)))
    places = state.predictions.places(device)
    known = (state.predictions.pair(one, two, place) for one, two in pairs for place in places)
    return any(pair is None or pair.level is Level.FALLBACK or not pair.in_domain for pair in known)


def _update_gpus(state: ClusterState, job: JobRecord, slowdown_ratio: float) -> None:
    for part in job.assignments:
        past = state.occupancy.slowdown_ewma_ratios.get(part.gpu_id, 0.0)
        if (slowdown_ratio or past) and part.gpu_id in state.gpus:
            state.occupancy.put_slowdown_ewma(part.gpu_id, moving_average(past, max(slowdown_ratio, 0.0)))
