"""What a fact about a job does, as a table keyed (phase, kind of event). A missing entry is a bug.

Reports about an attempt are looked up only when their (attempt, fence) is the one that holds GPUs now; all others are
stale and change nothing but the ghost whose end they may confirm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cotenant.counted_nouns import agreed
from scheduler_service.core import events
from scheduler_service.core.errors import InvalidTransition
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling.observations import observe
from scheduler_service.core.event_handling.queue_changes import cancel_orphan, giver_of
from scheduler_service.core.gangs.gang_attempts import begin_part, end_part, handling_phase, lost_part
from scheduler_service.core.gangs.gang_pauses import PauseReport, report_pause
from scheduler_service.core.jobs.job_parts import JobTimes, Submission
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.attempts import (
    LAUNCH_REFUSALS_MAX,
    NODE_FAULT_REFUSALS_MAX,
    NODE_FAULTS,
    backoff_ms,
    end,
    expire,
    hold_until,
    lose,
    note_colocation_change,
    requeue,
    restart,
    stop,
)
from scheduler_service.core.lifecycle.migration import complete_move
from scheduler_service.core.lifecycle.preparation import give_up_preparation
from scheduler_service.core.lifecycle.training_ends import steps_to_complete, without_passed_total
from scheduler_service.core.predictions.prediction_requests import ask_about_job, refresh_hold, refresh_hold_of_waiting
from scheduler_service.core.records import AfterStop, Phase, Reason
from scheduler_service.core.sharing.memory_shortage import out_of_memory
from scheduler_service.core.sharing.pausing import note_pause_refused, note_paused, note_resumed, outstanding_commands
from scheduler_service.core.sharing.peak_pauses import why_it_waits
from scheduler_service.core.state import ClusterState

JobHandler = Callable[[ClusterState, JobRecord, Any, EventEffects], None]

RESTARTING_EXIT_CLASSES = frozenset(
    {"lost", "fenced", "communication", "host_oom", "gpu_fault", "signal", "stopped", "checkpointed"}
)
"""Ends that another machine or another moment may spare the job."""


def submit(state: ClusterState, event: events.JobSubmitted, step: EventEffects) -> None:
    """Take a new job into the queue and ask what it will need.

    Raises:
        InvalidTransition: A job with this id exists.
    """
    request = event.request
    known = state.jobs.get(request.job_id)
    if known is not None:
        raise _invalid(known, event)
    job = JobRecord(
        request=request,
        submission=Submission(launch=event.launch, graph_sha256=event.graph_sha256, settings=event.settings),
        times=JobTimes(submitted_at_ms=state.now_ms),
    )
    state.put_job(with_history(job, at_ms=state.now_ms, kind="submit", message=agreed(f"{request.gpus} GPU(s)")))
    if cancel_orphan(state, state.jobs[request.job_id], step):
        return
    # After a restore no agent knows for sure what its node runs: a copy of one, or one that was wiped, joins too.
    hold_until(state, state.jobs[request.job_id], Reason(code="RESTORED"), state.settled_at_ms, step)
    job = state.jobs[request.job_id]
    ask_about_job(state, job, step)
    step.is_decision_due = refresh_hold(state, request.job_id)


def cancel(state: ClusterState, event: events.JobCancelled, step: EventEffects) -> None:
    """Take a job back; one that is unknown by now has ended long ago."""
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    giver = giver_of(event)
    if giver and not job.has_ended:
        job = with_history(job, at_ms=state.now_ms, kind="cancel", message=giver)
        state.put_job(job)
    _transition(job, event)(state, job, event, step)


def report(state: ClusterState, event: events.AttemptReport, step: EventEffects) -> None:
    """Apply what an agent says about an attempt; stale reports change nothing."""
    if isinstance(event, ENDING_EVENTS) and state.occupancy.drop_abandoned(
        event.job_id, event.attempt, event.fence, event.node_id
    ):
        refresh_hold_of_waiting(state, event.job_id)
        step.is_decision_due = True
    job = state.jobs.get(event.job_id)
    if job is None or not job.fence or (job.attempt, job.fence) != (event.attempt, event.fence):
        return
    # What names no node is about all of it: a forecast knows no parts.
    if job.gang is not None and isinstance(event, events.PartReport) and event.node_id:
        _report_part(state, job, event, step)
    elif job.gang is None or isinstance(event, events.PartReport) or job.phase is not Phase.STARTING:
        _transition(job, event)(state, job, event, step)


def _report_part(state: ClusterState, job: JobRecord, event: events.PartReport, step: EventEffects) -> None:
    """Apply what one node says of its part of a gang."""
    if isinstance(event, events.JobStarted):
        if job.phase is Phase.STARTING and begin_part(state, job, event.node_id, event, step):
            confirm_whole_start(state, state.jobs[job.job_id], step)
    elif isinstance(event, PauseReport):
        report_pause(state, job, event, step)
    elif isinstance(event, ENDING_EVENTS):
        is_late = isinstance(event, events.LaunchRefused) and has_started(job, event.node_id)
        whole = None if is_late else end_part(state, job, event, step)
        if whole is not None:
            ended = state.jobs[job.job_id]
            TRANSITIONS[handling_phase(ended, whole), type(whole)](state, ended, whole, step)


def confirm_whole_start(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    """Note that all parts of a gang run; a pause that was ordered meanwhile begins now."""
    confirm_start(state, job)
    step.commands += outstanding_commands(state.jobs[job.job_id])


def has_started(job: JobRecord, node_id: str) -> bool:
    """Return whether a part of a gang was confirmed to run."""
    return job.gang is not None and node_id in job.gang.started_node_ids


def lose_part(state: ClusterState, job: JobRecord, node_id: str, step: EventEffects) -> None:
    """Handle a part of a gang that certainly runs no more."""
    _report_part(state, job, lost_part(state, job, node_id), step)


def _transition(job: JobRecord, event: events.Event) -> JobHandler:
    handler = TRANSITIONS.get((job.phase, type(event)))
    if handler is None:
        raise _invalid(job, event)
    return handler


def _invalid(job: JobRecord, event: events.Event) -> InvalidTransition:
    story = (f"{line.at_ms} {line.kind}: {line.message}" for line in job.history)
    return InvalidTransition(job_id=job.job_id, phase=job.phase.value, event_kind=type(event).__name__, story=story)


def _ignore(state: ClusterState, job: JobRecord, event: events.Event, step: EventEffects) -> None:
    """A repetition; nothing changes."""


def _cancel_pending(state: ClusterState, job: JobRecord, event: events.JobCancelled, step: EventEffects) -> None:
    end(state, job, Phase.CANCELLED, Reason(code="CANCELLED"), step)


def _cancel_running(state: ClusterState, job: JobRecord, event: events.JobCancelled, step: EventEffects) -> None:
    stop(state, job, AfterStop.CANCEL, step)


def _cancel_stopping(state: ClusterState, job: JobRecord, event: events.JobCancelled, step: EventEffects) -> None:
    if job.after_stop is not AfterStop.CANCEL:
        job = give_up_preparation(job.changed(after_stop=AfterStop.CANCEL), step)
        state.put_job(job.moving(target=None).changed(reason=Reason(code="STOPPING_TO_CANCEL")))


def _started(state: ClusterState, job: JobRecord, event: events.AttemptReport, step: EventEffects) -> None:
    confirm_start(state, job)


def confirm_start(state: ClusterState, job: JobRecord) -> None:
    """Note that the process runs."""
    running = with_history(
        job,
        at_ms=state.now_ms,
        kind="started",
        message=f"attempt {job.attempt}",
        phase=Phase.RUNNING,
        counts=job.counts.changed(launch_refusals=0) if job.counts.launch_refusals else job.counts,
        measured=job.measured.changed(neighbours_since_ms=state.now_ms),
    )
    state.put_job(running)
    note_colocation_change(state, state.occupancy.neighbours(running))


def _progressed_while_starting(
    state: ClusterState, job: JobRecord, event: events.JobProgressed, step: EventEffects
) -> None:
    confirm_start(state, job)
    observe(state, state.jobs[job.job_id], event, step)


def _paused_while_starting(
    state: ClusterState, job: JobRecord, event: events.AttemptPaused, step: EventEffects
) -> None:
    confirm_start(state, job)
    note_paused(state, state.jobs[job.job_id], event, step)


def _with_end(job: JobRecord, event: events.JobStopped | events.JobFailed) -> JobRecord:
    newest = max(job.checkpoint_step, event.checkpoint_step)
    return _with_last_steps(job, event, exit_class=event.exit_class, exit_code=event.exit_code, checkpoint_step=newest)


def _with_success(job: JobRecord, event: events.JobFinished) -> JobRecord:
    return _with_last_steps(job, event, exit_class="done")


def _with_last_steps(
    job: JobRecord,
    event: events.JobStopped | events.JobFailed | events.JobFinished,
    *,
    exit_class: str,
    exit_code: int = 0,
    checkpoint_step: int | None = None,
) -> JobRecord:
    measured, reported = job.measured, job.reported
    if event.memory_peak_bytes > measured.attempt_peak_bytes:
        measured = measured.changed(attempt_peak_bytes=event.memory_peak_bytes)
    if event.memory_peak_bytes > reported.memory_peak_bytes:
        reported = reported.changed(memory_peak_bytes=event.memory_peak_bytes)
    job = job.changed(
        steps_done=max(job.steps_done, event.steps_done),
        reported=reported,
        measured=measured,
        checkpoint_step=job.checkpoint_step if checkpoint_step is None else checkpoint_step,
        exit=job.exit.changed(exit_class=exit_class, exit_code=exit_code),
    )
    return without_passed_total(job)


def _finished(state: ClusterState, job: JobRecord, event: events.JobFinished, step: EventEffects) -> None:
    """Accept a success: a program that was not asked to stop may end before its steps, or log a few of them."""
    job = _with_success(job, event)
    end(state, job, Phase.FINISHED, _finish(job), step)


def _finish(job: JobRecord) -> Reason:
    done, total = job.steps_done, steps_to_complete(job)
    numbers = {"steps_done": done, "steps_total": total}
    if job.request.target_loss and done:
        newest = {} if job.reported.loss is None else {"newest_loss": job.reported.loss}
        reached = {"steps_done": done, "target_loss": job.request.target_loss}
        return Reason(code="FINISHED_WITH_TARGET", numbers=reached | newest)
    if 0 < total < done:
        return Reason(code="FINISHED_BEYOND", numbers=numbers)
    if 0 < done >= total:
        return Reason(code="FINISHED")
    return Reason(code="FINISHED_EARLY", numbers=numbers) if done else Reason(code="FINISHED_UNCOUNTED")


def _finish_if_complete(
    state: ClusterState, job: JobRecord, event: events.JobStopped | events.JobFailed, step: EventEffects
) -> bool:
    """Finish a job whose program was told to stop but had done its last step and ended with success; say whether."""
    if event.exit_class not in ("stopped", "fenced") or event.exit_code:
        return False
    ended = _with_end(job, event)
    if not 0 < steps_to_complete(ended) <= event.steps_done:
        return False
    end(state, ended.exiting(exit_class="done"), Phase.FINISHED, Reason(code="FINISHED"), step)
    return True


def _failed(state: ClusterState, job: JobRecord, event: events.JobFailed, step: EventEffects) -> None:
    if _finish_if_complete(state, job, event, step):
        return
    job = _with_end(job, event).exiting(exit_detail=event.detail[:4_096])
    if event.exit_class == "gpu_oom":
        out_of_memory(state, job, event, step)
    elif event.exit_class in RESTARTING_EXIT_CLASSES:
        restart(state, job, Reason(code="ATTEMPT_" + event.exit_class.upper()), step)
    else:
        numbers = {"exit_code": float(event.exit_code)}
        end(state, job, Phase.FAILED, Reason(code="JOB_ERROR", numbers=numbers), step, message=job.exit.exit_detail)


def _stopped_unasked(state: ClusterState, job: JobRecord, event: events.JobStopped, step: EventEffects) -> None:
    if not _finish_if_complete(state, job, event, step):
        ended = _with_end(job, event).exiting(exit_detail=event.detail[:4_096])
        restart(state, ended, Reason(code="ATTEMPT_STOPPED"), step)


def _stopped(state: ClusterState, job: JobRecord, event: events.JobStopped, step: EventEffects) -> None:
    lose_as = _with_end(job, event)
    if job.after_stop is AfterStop.CANCEL:
        end(state, lose_as, Phase.CANCELLED, Reason(code="CANCELLED"), step)
    elif _finish_if_complete(state, job, event, step):
        return
    elif job.after_stop is AfterStop.MOVE:
        complete_move(state, lose_as, step)
    elif job.after_stop is AfterStop.EXPIRE:
        expire(state, lose_as, step)
    elif job.after_stop is AfterStop.RESTART:
        restart(state, lose_as, Reason(code="ATTEMPT_STALLED"), step)
    else:
        reason, wait_ms = why_it_waits(lose_as)
        requeue(state, lose_as.counting(preemptions=1), reason, step, wait_ms=wait_ms)


def _finished_while_stopping(
    state: ClusterState, job: JobRecord, event: events.JobFinished, step: EventEffects
) -> None:
    if job.after_stop is AfterStop.CANCEL:
        end(state, _with_success(job, event), Phase.CANCELLED, Reason(code="CANCELLED"), step)
    else:
        _finished(state, job, event, step)


def _failed_while_stopping(state: ClusterState, job: JobRecord, event: events.JobFailed, step: EventEffects) -> None:
    if job.after_stop is AfterStop.CANCEL:
        end(state, _with_end(job, event), Phase.CANCELLED, Reason(code="CANCELLED"), step)
    elif job.after_stop is AfterStop.EXPIRE and not _finish_if_complete(state, job, event, step):
        expire(state, _with_end(job, event), step)
    elif job.after_stop is not AfterStop.EXPIRE:
        _failed(state, job, event, step)


def _refused(state: ClusterState, job: JobRecord, event: events.LaunchRefused, step: EventEffects) -> None:
    """Try again later, a bounded number of times, unless that is useless; nothing ran, so no restart is counted."""
    refusals = job.counts.launch_refusals + 1
    detail = f"{event.code}: {event.message}"[:4_096]
    job = job.counting(launch_refusals=1).exiting(exit_class="refused", exit_detail=detail)
    refusals_max = NODE_FAULT_REFUSALS_MAX if event.code in NODE_FAULTS else LAUNCH_REFUSALS_MAX
    reason = Reason(code="LAUNCH_REFUSED", numbers={"refusals": refusals, "refusals_max": refusals_max})
    if event.is_final or refusals >= refusals_max:
        end(
            state,
            job,
            Phase.FAILED,
            Reason(code="LAUNCH_REFUSED_FOR_GOOD", numbers=reason.numbers),
            step,
            message=detail,
        )
    else:
        requeue(state, job, reason, step, wait_ms=backoff_ms(refusals))


def _refused_while_stopping(
    state: ClusterState, job: JobRecord, event: events.LaunchRefused, step: EventEffects
) -> None:
    lose(state, job, step)


ENDING_EVENTS = (events.JobStopped, events.JobFinished, events.JobFailed, events.LaunchRefused)

TRANSITIONS: dict[tuple[Phase, type[events.Event]], JobHandler] = {
    (Phase.PENDING, events.JobCancelled): _cancel_pending,
    (Phase.STARTING, events.JobCancelled): _cancel_running,
    (Phase.RUNNING, events.JobCancelled): _cancel_running,
    (Phase.PAUSED, events.JobCancelled): _cancel_running,
    (Phase.STOPPING, events.JobCancelled): _cancel_stopping,
    (Phase.FINISHED, events.JobCancelled): _ignore,
    (Phase.FAILED, events.JobCancelled): _ignore,
    (Phase.CANCELLED, events.JobCancelled): _ignore,
    (Phase.STARTING, events.JobStarted): _started,
    (Phase.RUNNING, events.JobStarted): _ignore,
    (Phase.PAUSED, events.JobStarted): _ignore,
    (Phase.STOPPING, events.JobStarted): _ignore,
    (Phase.STARTING, events.JobProgressed): _progressed_while_starting,
    (Phase.RUNNING, events.JobProgressed): observe,
    (Phase.STOPPING, events.JobProgressed): observe,
    (Phase.PAUSED, events.JobProgressed): observe,
    (Phase.STARTING, events.AttemptPaused): _paused_while_starting,
    (Phase.RUNNING, events.AttemptPaused): note_paused,
    (Phase.PAUSED, events.AttemptPaused): _ignore,
    (Phase.STOPPING, events.AttemptPaused): _ignore,
    (Phase.STARTING, events.AttemptResumed): _ignore,
    (Phase.RUNNING, events.AttemptResumed): _ignore,
    (Phase.PAUSED, events.AttemptResumed): note_resumed,
    (Phase.STOPPING, events.AttemptResumed): _ignore,
    (Phase.STARTING, events.PauseRefused): note_pause_refused,
    (Phase.RUNNING, events.PauseRefused): note_pause_refused,
    (Phase.PAUSED, events.PauseRefused): _ignore,
    (Phase.STOPPING, events.PauseRefused): _ignore,
    (Phase.STARTING, events.JobFinished): _finished,
    (Phase.RUNNING, events.JobFinished): _finished,
    (Phase.PAUSED, events.JobFinished): _finished,
    (Phase.STOPPING, events.JobFinished): _finished_while_stopping,
    (Phase.STARTING, events.JobFailed): _failed,
    (Phase.RUNNING, events.JobFailed): _failed,
    (Phase.PAUSED, events.JobFailed): _failed,
    (Phase.STOPPING, events.JobFailed): _failed_while_stopping,
    (Phase.STARTING, events.JobStopped): _stopped_unasked,
    (Phase.RUNNING, events.JobStopped): _stopped_unasked,
    (Phase.PAUSED, events.JobStopped): _stopped_unasked,
    (Phase.STOPPING, events.JobStopped): _stopped,
    (Phase.STARTING, events.LaunchRefused): _refused,
    (Phase.RUNNING, events.LaunchRefused): _ignore,
    (Phase.PAUSED, events.LaunchRefused): _ignore,
    (Phase.STOPPING, events.LaunchRefused): _refused_while_stopping,
}
"""Reports never meet a pending or ended job: those have no live fence, so the report was stale."""
