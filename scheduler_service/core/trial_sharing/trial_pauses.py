"""The incoming job of a broken trial leaves: paused where the other job ends soon, else stopped to go on elsewhere.

Jobs that are paused for the peak of another one (`peak_pauses`), or so that another one is measured
(`first_measurements`), are looked after here as well.

A pause gives the other job its pace back at once and costs no restart, but the paused job keeps its memory, and no
third one may come. So it is for a job that will have the GPU to itself soon, by what a restart would cost it; where
that does not come true in time it is stopped with a checkpoint.
"""

from __future__ import annotations

from scheduler_service.core.cluster_view.step_times import restart_ms_of
from scheduler_service.core.decisions import Pause
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.attempts import stop
from scheduler_service.core.records import AfterStop, Phase, Reason, TrialStage
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.core.sharing.pausing import (
    CONFIRMATION_MS_MAX,
    LENT_CODE,
    WAIT_MS_MAX,
    order_pause,
    order_resume,
)
from scheduler_service.core.sharing.peak_pauses import PEAKS_NEAR, end_peak_pause
from scheduler_service.core.state import ClusterState

RESTARTS_WAITED_MAX = 3.0
"""For so many times what a restart costs it a job waits for the other one's end: restarted it would wait as well."""
TRIAL_CODES = frozenset({"TRIAL_BROKEN", "TRIAL_MEMORY", "TRIAL_UNMEASURED", "MEASURED_APART", "NOT_MEASURED_IN_TIME"})


def take_off(state: ClusterState, incoming: JobRecord, resident: JobRecord, reason: Reason, step: EventEffects) -> None:
    """Take the incoming job of a trial away from the other one."""
    can_pause = incoming.pause is None and pause_obstacle(state, incoming) is None
    if can_pause and _ends_within(resident, _waits_ms_max(state, incoming)) and not state.occupancy.free_gpu_ids:
        for job in (incoming, resident):
            state.put_job(job.changed(trial=None))
        order_pause(state, Pause(job_id=incoming.job_id, reason=reason), step)
        step.wakes_at_ms.append(state.now_ms + WAIT_MS_MAX)
    else:
        stop(state, incoming, AfterStop.REQUEUE, step, reason=reason)


def end_trial_pauses(state: ClusterState, step: EventEffects) -> None:
    """Let jobs go on that are alone by now, and stop those that have waited too long."""
    for job_id in tuple(state.pauses):
        job = state.jobs[job_id]
        pause = job.pause
        if pause is None or pause.is_resuming:
            continue
        if pause.reason.code == PEAKS_NEAR:
            end_peak_pause(state, job, step)
        if pause.reason.code == LENT_CODE and not _is_lent_to(state, job):
            order_resume(state, job_id, step)
        if pause.reason.code not in TRIAL_CODES:
            continue
        limit_ms = WAIT_MS_MAX if job.phase is Phase.PAUSED else CONFIRMATION_MS_MAX
        if not state.occupancy.neighbours(job):
            order_resume(state, job_id, step)
        elif state.now_ms >= pause.ordered_at_ms + limit_ms:
            stop(state, job, AfterStop.REQUEUE, step, reason=pause.reason)


def _is_lent_to(state: ClusterState, host: JobRecord) -> bool:
    """An incoming job is being measured while this job stands still."""
    incoming = state.jobs.get(host.trial.other_job_id) if host.trial is not None else None
    is_measuring = host.trial is not None and host.trial.stage is TrialStage.MEASURING
    return is_measuring and incoming is not None and incoming.phase is Phase.RUNNING


def _waits_ms_max(state: ClusterState, incoming: JobRecord) -> float:
    began_ms, move_ms = incoming.times.started_at_ms, incoming.moves.move_ms
    restart_ms = restart_ms_of(incoming, started_at_ms=began_ms, move_ms=move_ms, now_ms=state.now_ms)
    return min(RESTARTS_WAITED_MAX * restart_ms, WAIT_MS_MAX)


def _ends_within(job: JobRecord, ms: float) -> bool:
    steps_left = job.request.steps_total - job.steps_done
    return job.request.steps_total > 0 and job.solo_step_ms > 0 and steps_left * job.solo_step_ms <= ms
