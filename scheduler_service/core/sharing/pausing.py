"""Pausing a running attempt where it is: the order, what its node says of it, and an order without an answer.

A paused job keeps its GPU and its memory, and no other job starts there. Nothing that counts time counts it: neither
the GPU time that it has had nor its steps. Its node lets it go on by itself when the pause is over, whatever happens
here; what ends a paused attempt (a stop, a move, a lost node) ends the pause with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scheduler_service.core.commands import PauseJob, ResumeJob
from scheduler_service.core.decisions import Pause
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import (
    AttemptPaused,
    AttemptResumed,
    Event,
    PauseRefused,
    PauseRequested,
    ResumeRequested,
    RunningAttempt,
)
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.attempts import accrued, note_colocation_change, stop
from scheduler_service.core.records import PAUSED_MS_MAX, AfterStop, JobPause, Phase, Reason
from scheduler_service.core.state import ClusterState

CONFIRMATION_MS_MAX = 10_000
"""After this time without a word about it, an order to pause has not reached its job and is withdrawn."""
WAIT_MS_MAX = PAUSED_MS_MAX - 2 * CONFIRMATION_MS_MAX
"""After so long a paused job that waits for another one is stopped, before its node would let it go on."""
OVERDUE_MS = 5_000
"""How much later than its node should have let it go on a paused job is told so again."""


_OPERATORS = "PAUSED_BY_OPERATOR"
LENT_CODE = "PAUSED_FOR_MEASUREMENT"
"""Of a pause in which another job is measured on the GPU."""


def request_pause(state: ClusterState, event: PauseRequested, step: EventEffects) -> None:
    """Pause a job for an operator; one that does not run (any more), or is paused already, is left as it is."""
    job = state.jobs.get(event.job_id)
    if job is not None and job.phase in (Phase.STARTING, Phase.RUNNING) and job.pause is None:
        reason = Reason(code=_OPERATORS)
        order_pause(state, Pause(job_id=job.job_id, reason=reason, paused_ms_max=event.paused_ms_max), step)


def request_resume(state: ClusterState, event: ResumeRequested, step: EventEffects) -> None:
    """Let a job go on for an operator; one that is not paused is left as it is."""
    if event.job_id in state.jobs:
        order_resume(state, event.job_id, step)


def order_pause(state: ClusterState, decision: Pause, step: EventEffects) -> None:
    """Tell the node to let a job stand still."""
    job = state.jobs[decision.job_id]
    pause = JobPause(reason=decision.reason, ordered_at_ms=state.now_ms, paused_ms_max=decision.paused_ms_max)
    state.put_job(
        with_history(job, at_ms=state.now_ms, kind="pause", message=f"ordered: {decision.reason.code}", pause=pause)
    )
    step.commands += pause_commands(state.jobs[job.job_id])
    step.wakes_at_ms.append(state.now_ms + min(CONFIRMATION_MS_MAX, pause.paused_ms_max))


def order_resume(state: ClusterState, job_id: str, step: EventEffects) -> None:
    """Tell the node to let a job go on; an order to pause that it has not confirmed is withdrawn at once."""
    job = state.jobs[job_id]
    if job.pause is None:
        return
    pause = replace(job.pause, is_resuming=True) if job.phase is Phase.PAUSED else None
    state.put_job(with_history(job, at_ms=state.now_ms, kind="resume", message="ordered", pause=pause))
    step.commands += resume_commands(job)


def pause_commands(job: JobRecord) -> list[PauseJob]:
    """Return the orders that pause the present attempt, one per node; none where nothing is ordered.

    None either while parts of a gang are still to begin: those that run would wait for them, not for the pause.
    """
    if job.pause is None or (job.gang is not None and job.phase is Phase.STARTING):
        return []
    return [
        PauseJob(
            node_id=node_id,
            job_id=job.job_id,
            attempt=job.attempt,
            fence=job.fence,
            cause=job.pause.reason.code,
            paused_ms_max=job.pause.paused_ms_max,
        )
        for node_id in job.live_node_ids
    ]


def resume_commands(job: JobRecord) -> list[ResumeJob]:
    """Return the orders that let the present attempt go on, one per node."""
    return [
        ResumeJob(node_id=node_id, job_id=job.job_id, attempt=job.attempt, fence=job.fence)
        for node_id in job.live_node_ids
    ]


def outstanding_commands(job: JobRecord) -> list[PauseJob] | list[ResumeJob]:
    """Return the order about a pause whose effect is outstanding, for carrying it out again."""
    if job.pause is None or (job.phase is Phase.PAUSED and not job.pause.is_resuming):
        return []
    return resume_commands(job) if job.phase is Phase.PAUSED else pause_commands(job)


def note_paused(state: ClusterState, job: JobRecord, event: AttemptPaused | RunningAttempt, step: EventEffects) -> None:
    """Note that a running job stands still; one of which that was not wanted (any more) is told to go on."""
    unwanted = JobPause(reason=Reason(code="PAUSE_UNWANTED"), ordered_at_ms=state.now_ms, is_resuming=True)
    pause = replace(job.pause or unwanted, paused_at_ms=state.now_ms)
    paused = with_history(
        accrued(job, state.now_ms),
        at_ms=state.now_ms,
        kind="paused",
        message=pause.reason.code,
        phase=Phase.PAUSED,
        pause=pause,
        measured=job.measured.changed(paused_ms=max(job.measured.paused_ms, event.paused_ms)),
    )
    state.put_job(paused)
    note_colocation_change(state, (job.job_id, *state.occupancy.neighbours(paused)))
    if pause.is_resuming:
        step.commands += resume_commands(paused)
    step.wakes_at_ms.append(pause.until_ms + OVERDUE_MS)
    step.is_decision_due = True


def note_resumed(
    state: ClusterState, job: JobRecord, event: AttemptResumed | RunningAttempt, step: EventEffects
) -> None:
    """Note that a paused job goes on; its time counts again from now."""
    is_lent = job.pause is not None and job.pause.reason.code == LENT_CODE
    lent_ms = state.now_ms - job.pause.paused_at_ms if job.pause is not None and is_lent else 0
    resumed = with_history(
        accrued(job, state.now_ms).counting(lent_ms=lent_ms),
        at_ms=state.now_ms,
        kind="resumed",
        message="by order" if job.pause is not None and job.pause.is_resuming else "the pause was over",
        phase=Phase.RUNNING,
        pause=None,
        measured=job.measured.changed(paused_ms=max(job.measured.paused_ms, event.paused_ms)),
    )
    state.put_job(resumed)
    note_colocation_change(state, (job.job_id, *state.occupancy.neighbours(resumed)))
    step.is_decision_due = True


def note_pause_refused(state: ClusterState, job: JobRecord, event: PauseRefused, step: EventEffects) -> None:
    """Stop a job with a checkpoint that was to be paused and cannot be, unless that was not for others' sake alone.

    A late refusal changes nothing.
    """
    if job.pause is None:
        return
    message = f"{event.code}: {event.message}"
    if job.pause.reason.code in (_OPERATORS, LENT_CODE):
        state.put_job(with_history(job, at_ms=state.now_ms, kind="pause", message=message, pause=None))
        return
    stop(state, with_history(job, at_ms=state.now_ms, kind="pause", message=message), AfterStop.REQUEUE, step)
    step.is_decision_due = True


def look_after_pauses(state: ClusterState, step: EventEffects) -> None:
    """Withdraw orders that were not confirmed, and tell jobs again to go on that should have done so by themselves."""
    for job_id in tuple(state.pauses):
        job = state.jobs[job_id]
        pause = job.pause
        if pause is None:
            continue
        confirmed_by_ms = pause.ordered_at_ms + min(CONFIRMATION_MS_MAX, pause.paused_ms_max)
        if job.phase is Phase.PAUSED:
            if state.now_ms >= pause.until_ms + OVERDUE_MS:
                step.commands += resume_commands(job)
                step.wakes_at_ms.append(state.now_ms + OVERDUE_MS)
        elif state.now_ms >= confirmed_by_ms:
            lapsed = with_history(job, at_ms=state.now_ms, kind="pause", message="not confirmed", pause=None)
            state.put_job(lapsed)
            step.commands += resume_commands(lapsed)
            step.is_decision_due = True


HANDLERS: Mapping[type[Event], Callable[[ClusterState, Any, EventEffects], None]] = {
    PauseRequested: request_pause,
    ResumeRequested: request_resume,
}
"""What handles what operators want."""
