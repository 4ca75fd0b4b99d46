"""Limits that time sets to a running job: its time limit, and progress that stays away for too long.

Both count the time in which the job ran: neither the time in the queue nor a pause.
"""

from __future__ import annotations

from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.attempts import stop
from scheduler_service.core.records import AfterStop, Phase, Reason
from scheduler_service.core.state import ClusterState

STALL_STEPS = 10
"""A job stalls when no step came for so many times its step time, and for the least time that was set."""
STALL_LOOKS = 4
"""Looks at every running job in the least time of a stall."""


def ran_ms(job: JobRecord, now_ms: int) -> int:
    """Return how long a job has run in sum, its present attempt included."""
    is_running = job.holds_gpus and job.phase is not Phase.PAUSED
    return job.ran_ms + (now_ms - job.accrued_at_ms if is_running else 0)


def enforce_time_limits(state: ClusterState, step: EventEffects) -> None:
    """Stop jobs whose time is over, with a checkpoint, and wake again when that of the others may be."""
    for job_id in tuple(state.register.limited_job_ids):
        job = state.jobs[job_id]
        if job.phase is Phase.STOPPING:
            continue
        left_ms = job.request.terms.time_limit_ms - ran_ms(job, state.now_ms)
        if left_ms <= 0:
            reason = Reason(code="STOPPING_AT_TIME_LIMIT", numbers=limit_numbers(job, state.now_ms))
            stop(state, job, AfterStop.EXPIRE, step, reason=reason)
        else:
            step.wakes_at_ms.append(state.now_ms + left_ms)


def limit_numbers(job: JobRecord, now_ms: int) -> dict[str, float]:
    """Return how long a job ran and might run, for a reason."""
    return {"ran_ms": ran_ms(job, now_ms), "time_limit_ms": job.request.terms.time_limit_ms}


def look_for_stalls(state: ClusterState, stall_ms: int, step: EventEffects) -> None:
    """Note jobs that make no progress any more, and restart those that want that.

    Args:
        state: Knows the running jobs.
        stall_ms: No shorter time without a step is a stall.
        step: Takes the commands.
    """
    for job_id in tuple(state.in_phase(Phase.RUNNING)):
        job = state.jobs[job_id]
        measured = job.measured
        idle_ms = ran_ms(job, state.now_ms) - measured.progressed_ran_ms
        # A job that has not made a step in this attempt may never report any.
        is_noted_or_fine = measured.stalled_since_ms or idle_ms <= max(stall_ms, STALL_STEPS * job.step_ms)
        if measured.progressed_ran_ms < 0 or is_noted_or_fine:
            continue
        message = f"no step for {idle_ms / 60_000:.1f} min"
        measured = measured.changed(stalled_since_ms=state.now_ms - idle_ms)
        stalled = with_history(job, at_ms=state.now_ms, kind="stalled", message=message, measured=measured)
        state.put_job(stalled)
        if job.request.terms.restarts_stalled:
            stop(state, stalled, AfterStop.RESTART, step, reason=Reason(code="STALLED", numbers={"idle_ms": idle_ms}))


def next_look_ms(now_ms: int, stall_ms: int) -> int:
    """Return when to look for stalls again."""
    interval_ms = max(stall_ms // STALL_LOOKS, 1)
    return (now_ms // interval_ms + 1) * interval_ms
