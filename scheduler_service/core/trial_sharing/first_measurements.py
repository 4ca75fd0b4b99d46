"""The first two stages of a trial of which one job was never measured: it starts up, then it is measured alone.

    starting up ── it makes steps ──► measuring: the other job is paused ── a sound window ──► sharing, on trial
         │                                │
         └── no step in time ─────────────┴── the pause is over, or both could not keep what they accept ──► it leaves

While the incoming job starts up both run, and nothing is learned of them together. The other job is paused once for it,
for what it may lend (`first_measurement_rules`), goes on as soon as the incoming job was measured, is stopped or has
ended, and is let go by its node in any case when the pause is over.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from scheduler_service.core.cluster_view.capacity import Resident, reserved_bytes
from scheduler_service.core.decisions import Decision, Pause
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.trial_start import TRIAL_MS, put_stage
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import JobPrediction, Phase, Reason, TrialStage
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.core.sharing.pausing import CONFIRMATION_MS_MAX, LENT_CODE, order_pause, order_resume
from scheduler_service.core.sharing.sharing_consent import consented_slowdowns
from scheduler_service.core.state import ClusterState
from scheduler_service.core.trial_sharing.first_measurement_rules import lendable_ms, pause_ms_least
from scheduler_service.core.trial_sharing.trial_pauses import take_off

START_UP_MS_MAX = 10 * TRIAL_MS
"""An incoming job that makes no step for so long leaves; one that slows the other job down too much leaves sooner."""


def go_on_measuring(state: ClusterState, job_id: str, step: EventEffects) -> None:
    """Take the next stage of a trial that begins with a measurement, after a window of its incoming job, if due."""
    incoming = state.jobs[job_id]
    trial = incoming.trial
    if trial is None or trial.is_sharing or not trial.is_incoming or incoming.phase is not Phase.RUNNING:
        return
    host = state.jobs[trial.other_job_id]
    if not incoming.measured.windows_seen:
        return
    if (known := _measured(state, incoming)) is not None:
        _conclude(state, incoming, host, known, step)
    elif trial.stage is TrialStage.STARTING_UP:
        if _can_be_paused(state, host):
            _pause(state, incoming, host, step)
    elif host.pause is None:
        _give_up(state, incoming, host, step)


def look_at_late_measurement(state: ClusterState, incoming: JobRecord, step: EventEffects) -> None:
    """Let an incoming job leave whose time for a stage is over, unless it may still start up."""
    trial = incoming.trial
    if trial is None or incoming.phase not in (Phase.STARTING, Phase.RUNNING):
        return
    host = state.jobs[trial.other_job_id]
    is_late = state.now_ms - trial.since_ms >= START_UP_MS_MAX
    if trial.stage is TrialStage.MEASURING or is_late or _is_slowed_down(host):
        _give_up(state, incoming, host, step)
        return
    until_ms = state.now_ms + TRIAL_MS
    state.put_job(incoming.changed(trial=replace(trial, until_ms=until_ms)))
    step.wakes_at_ms.append(until_ms)
    go_on_measuring(state, incoming.job_id, step)


def _is_slowed_down(host: JobRecord) -> bool:
    ratios = host.trial.ratios if host.trial is not None else ()
    return bool(ratios) and fmean(ratios) > host.request.max_slowdown_ratio


def _can_be_paused(state: ClusterState, host: JobRecord) -> bool:
    return host.phase is Phase.RUNNING and host.pause is None and pause_obstacle(state, host) is None


def _pause(state: ClusterState, incoming: JobRecord, host: JobRecord, step: EventEffects) -> None:
    steps_left = host.request.steps_total - host.steps_done
    is_known = host.request.steps_total > 0 and host.solo_step_ms > 0
    paused_ms_max = lendable_ms(
        host.request,
        ran_ms=host.ran_ms,
        remaining_ms=max(steps_left, 0) * host.solo_step_ms if is_known else None,
        lent_ms=host.counts.lent_ms,
        least_ms=pause_ms_least(state.report_interval_ms),
    )
    if not paused_ms_max:
        _give_up(state, incoming, host, step)
        return
    limit_ms = paused_ms_max + CONFIRMATION_MS_MAX
    put_stage(state, incoming.job_id, TrialStage.MEASURING, step, resident_id=host.job_id, limit_ms=limit_ms)
    state.put_job(state.jobs[host.job_id].counting(lent_pauses=1))
    numbers = {"paused_max_ms": paused_ms_max}
    order = Pause(
        job_id=host.job_id,
        reason=Reason(code=LENT_CODE, numbers=numbers, job_ids=(incoming.job_id,), gpu_ids=host.gpu_ids),
        paused_ms_max=paused_ms_max,
    )
    order_pause(state, order, step)
    _tell(state, incoming, Reason(code="IS_MEASURED", numbers=numbers, job_ids=(host.job_id,), gpu_ids=host.gpu_ids))


def _measured(state: ClusterState, incoming: JobRecord) -> JobPrediction | None:
    """Return what is known of an incoming job that was measured alone; None = it was not."""
    gpu = state.gpus.get(incoming.gpu_ids[0])
    known = state.predictions.job(incoming.request.key, gpu.gpu.device) if gpu is not None else None
    return known if known is not None and incoming.shape.micro_batch_size in known.measured_micro_batch_sizes else None


def _conclude(
    state: ClusterState, incoming: JobRecord, host: JobRecord, known: JobPrediction, step: EventEffects
) -> None:
    """Let the other job go on, and let both share on trial if what was measured allows that."""
    gpu = state.gpus[incoming.gpu_ids[0]].gpu
    _let_go_on(state, host, step)
    wanted_bytes = reserved_bytes(incoming.request, known, incoming.shape.micro_batch_size, gpu)
    if wanted_bytes is not None and wanted_bytes < incoming.shape.memory_reserved_bytes:
        kept_bytes = max(wanted_bytes, incoming.measured.attempt_peak_bytes)
        state.put_job(incoming.changed(shape=incoming.shape.changed(memory_reserved_bytes=kept_bytes)))
    incoming, host = state.jobs[incoming.job_id], state.jobs[host.job_id]
    found = consented_slowdowns(_resident(incoming), [_resident(host)], gpu, state.predictions)
    if isinstance(found, Reason):
        code = "MEASURED_APART" if found.code == "SLOWDOWN_TOO_HIGH" else "TRIAL_UNMEASURED"
        _leave(state, incoming, host, replace(found, code=code), step)
        return
    (_, own), (_, others) = found
    put_stage(state, incoming.job_id, TrialStage.SHARING, step, resident_id=host.job_id)
    numbers = {"slowdown_ratio": own.ratio, "neighbour_slowdown_ratio": others.ratio}
    _tell(
        state, incoming, Reason(code="STARTS_ON_TRIAL", numbers=numbers, job_ids=(host.job_id,), gpu_ids=host.gpu_ids)
    )
    step.is_decision_due = True


def _resident(job: JobRecord) -> Resident:
    return Resident(
        request=job.request,
        micro_batch_size=job.shape.micro_batch_size,
        memory_reserved_bytes=job.shape.memory_reserved_bytes,
    )


def _give_up(state: ClusterState, incoming: JobRecord, host: JobRecord, step: EventEffects) -> None:
    """Let an incoming job leave that could not be measured; it is started so no more."""
    _let_go_on(state, host, step)
    reason = Reason(code="NOT_MEASURED_IN_TIME", job_ids=(host.job_id,), gpu_ids=incoming.gpu_ids)
    _leave(state, incoming, host, reason, step)


def _leave(state: ClusterState, incoming: JobRecord, host: JobRecord, reason: Reason, step: EventEffects) -> None:
    leaving = with_history(incoming, at_ms=state.now_ms, kind="trial", message=describe_reason(reason))
    take_off(state, leaving, state.jobs[host.job_id], reason, step)
    step.is_decision_due = True


def _let_go_on(state: ClusterState, host: JobRecord, step: EventEffects) -> None:
    """End the pause that is for the incoming job; an operator's is none of it."""
    if host.pause is not None and host.pause.reason.code == LENT_CODE and not host.pause.is_resuming:
        order_resume(state, host.job_id, step)


def _tell(state: ClusterState, incoming: JobRecord, reason: Reason) -> None:
    """Keep how far it has come as the reason of the incoming job."""
    state.put_job(state.jobs[incoming.job_id].changed(reason=reason))
    state.decisions.record(Decision(job_id=incoming.job_id, reason=reason))
