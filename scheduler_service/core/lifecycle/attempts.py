"""The life of one attempt: launching, stopping, ending, starting over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cotenant.counted_nouns import agreed
from scheduler_service.core.cluster_view.capacity import memory_point
from scheduler_service.core.cluster_view.replica_groups import with_servers
from scheduler_service.core.decisions import MeasuringStart, Start
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.gang_records import GangAttempt
from scheduler_service.core.jobs.job_parts import AttemptExit, AttemptMeasurements, AttemptShape, JobMoves
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.jobs.preparation_records import Preparation
from scheduler_service.core.jobs.unsaved_work import lost_steps, with_lost_steps, with_unsaved_work
from scheduler_service.core.lifecycle.attempt_orders import arrange, launch_commands, stop_commands, without_unlaunched
from scheduler_service.core.lifecycle.granted_checkpoints import granted_after
from scheduler_service.core.lifecycle.outcomes import tell_end
from scheduler_service.core.lifecycle.prepared_attempts import discard_commands, discard_unlaunched, next_attempt
from scheduler_service.core.lifecycle.trial_start import begin_trial
from scheduler_service.core.predictions.prediction_requests import ask_again, refresh_hold
from scheduler_service.core.records import AfterStop, Assignment, Phase, Reason, TrialStage
from scheduler_service.core.state import ClusterState

BACKOFF_FIRST_MS = 1_000
BACKOFF_MAX_MS = 300_000
LAUNCH_REFUSALS_MAX = 5
"""Refusals in a row after which a job fails: the agent's own file will not change by waiting."""
NODE_FAULTS = frozenset({"NODE_FAILURE"})
"""Codes of refusals for which the node is at fault, and not what it was asked for."""
NODE_FAULT_REFUSALS_MAX = 300
"""The same of these: with the longest pauses about a day, in which an operator can mend the node."""

_NO_EXIT = AttemptExit()
# A name of the module is found four times as fast as a member of its enum, on every fact.
_PAUSED: Final = Phase.PAUSED


def backoff_ms(failures: int) -> int:
    """Return how long to wait after this many failures: doubling from one second to five minutes."""
    return min(BACKOFF_FIRST_MS << min(failures - 1, 20), BACKOFF_MAX_MS)


def launch(
    state: ClusterState,
    job: JobRecord,
    start: Start,
    *,
    reserved_bytes: int,
    step: EventEffects,
    preparation: Preparation | None = None,
) -> None:
    """Begin a new attempt of a job that has none, with a fence that no attempt has had, or with that of a prepared one.

    Args:
        state: Knows the job.
        job: Holds no GPUs.
        start: Where, and in what shape.
        reserved_bytes: On each of its GPUs.
        step: Takes the commands.
        preparation: The attempt that was started early for this launch; None = it begins from nothing.
    """
    attempt, fence = next_attempt(state, job) if preparation is None else (preparation.attempt, preparation.fence)
    assignments, node_ids, is_gang = arrange(state, job, start.assignments)
    job = with_history(
        job,
        at_ms=state.now_ms,
        kind="launch",
        message=_in_words(attempt, assignments, preparation),
        phase=Phase.STARTING,
        reason=start.reason,
        attempt=attempt,
        fence=fence,
        assignments=assignments,
        node_ids=node_ids,
        shape=_shape(job, start, reserved_bytes),
        times=job.times.changed(
            started_at_ms=state.now_ms, first_started_at_ms=job.times.first_started_at_ms or state.now_ms
        ),
        accrued_at_ms=state.now_ms,
        measured=AttemptMeasurements(neighbours_since_ms=state.now_ms),
        trial=None,
        after_stop=AfterStop.NOTHING,
        moves=job.moves if job.moves.move_ms else _expected_moves(state, job),
        gang=GangAttempt(is_prepared=preparation is not None) if is_gang else None,
        exit=_NO_EXIT,
        request=with_servers(job.request, start.servers),
    )
    state.put_job(job)
    _wake_at_limit(state, job, step)
    _note_neighbours(state, job, start, step)
    step.commands += launch_commands(state, state.jobs[job.job_id])


def _expected_moves(state: ClusterState, job: JobRecord) -> JobMoves:
    """Return the moves of a job that has none measured: they are taken to cost what those of its key did."""
    move_ms = state.keys.move_ms_of(job.request.key)
    return job.moves.changed(move_ms=move_ms) if move_ms else job.moves


def _wake_at_limit(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    if job.request.terms.time_limit_ms:
        step.wakes_at_ms.append(state.now_ms + max(job.request.terms.time_limit_ms - job.ran_ms, 1))


def _in_words(attempt: int, assignments: Iterable[Assignment], preparation: Preparation | None) -> str:
    gpus = ", ".join([part.gpu_id for part in assignments])
    return f"attempt {attempt} on {gpus}" + (", prepared" if preparation is not None else "")


def _note_neighbours(state: ClusterState, job: JobRecord, start: Start, step: EventEffects) -> None:
    neighbours = state.occupancy.neighbours(job)
    if neighbours:
        note_colocation_change(state, (job.job_id, *neighbours), is_shared=True)
    if neighbours == (start.trial_with,):
        stage = TrialStage.STARTING_UP if isinstance(start, MeasuringStart) else TrialStage.SHARING
        begin_trial(state, job.job_id, start.trial_with, step, stage)


def _shape(job: JobRecord, start: Start, reserved_bytes: int) -> AttemptShape:
    """Return the shape of the attempt; a job that ran out of memory is given fewer samples at once."""
    autopsy = job.reported.memory_autopsy
    most = autopsy.micro_batch_size_max if autopsy is not None else 0
    size, passes = start.micro_batch_size, start.accumulation_steps
    if 0 < most < size:
        size, passes = most, -(-size * passes // most)
    return AttemptShape(
        micro_batch_size=size,
        accumulation_steps=passes,
        memory_reserved_bytes=reserved_bytes,
        memory_surge=start.memory_surge,
        predicted_slowdown_ratio=start.predicted_slowdown_ratio,
    )


def stop(
    state: ClusterState, job: JobRecord, after: AfterStop, step: EventEffects, *, reason: Reason | None = None
) -> None:
    """Ask for the end of an attempt; its GPUs are `releasing` until the agent confirms."""
    message = after.value if reason is None else f"{after.value}: {reason.code}"
    reason = reason or Reason(code="STOPPING_TO_CANCEL" if after is AfterStop.CANCEL else "STOPPING_TO_REQUEUE")
    step.commands += discard_unlaunched(job)
    job = with_history(
        without_unlaunched(job),
        at_ms=state.now_ms,
        kind="stop",
        message=message,
        phase=Phase.STOPPING,
        pause=None,
        after_stop=after,
        reason=with_unsaved_work(reason, job, state.now_ms),
        **accruals(job, state.now_ms),
    )
    state.put_job(job)
    step.commands += stop_commands(job)


def note_colocation_change(state: ClusterState, job_ids: Iterable[str], *, is_shared: bool = False) -> None:
    """Remember that windows measured across this instant mix two situations, and who has company from now on."""
    for job_id in job_ids:
        job = state.jobs[job_id]
        was_shared = job.measured.was_shared or is_shared
        job = job.measuring(neighbours_since_ms=state.now_ms, was_shared=was_shared)
        if job.trial is not None and state.occupancy.neighbours(job) != (job.trial.other_job_id,):
            job = job.changed(trial=None)
        state.put_job(job)


def accrued(job: JobRecord, now_ms: int) -> JobRecord:
    """Return the job with its GPU time counted until now."""
    return job.changed(**accruals(job, now_ms))


def accruals(job: JobRecord, now_ms: int) -> dict[str, Any]:
    """Return what counting a job's GPU time until now changes of it; while it is paused it has none."""
    more_ms = 0 if job.phase is _PAUSED else now_ms - job.accrued_at_ms
    return {
        "attained_gpu_ms": job.attained_gpu_ms + more_ms * len(job.assignments),
        "ran_ms": job.ran_ms + more_ms,
        "accrued_at_ms": now_ms,
    }


def leave_gpus(
    state: ClusterState, job: JobRecord, step: EventEffects, *, has_steps: bool, is_complete: bool = False
) -> dict[str, Any]:
    """Record what is common to every end of an attempt and return what it changes of the job."""
    step.is_decision_due = True
    tell_end(state, job, step, is_complete=is_complete)
    step.commands += [*discard_commands(job), *discard_unlaunched(job)]
    _note_peak(state, job)
    return {
        **accruals(job, state.now_ms),
        "fence": 0,
        "granted": granted_after(job) if has_steps else job.granted,
        "after_stop": AfterStop.NOTHING,
        "moves": job.moves.ended,
        "pause": None,
        "trial": None,
        "gang": None,
    }


def _note_peak(state: ClusterState, job: JobRecord) -> None:
    """The end of an attempt may tell of a larger peak than any report before, or than is known of its key."""
    key, peak_bytes = job.request.key, job.measured.attempt_peak_bytes
    gpu = state.gpus.get(job.assignments[0].gpu_id) if job.assignments else None
    if gpu is None:
        return
    device = gpu.gpu.device
    if len(job.assignments) == 1:
        micro_batch_size = job.shape.micro_batch_size
        state.predictions.raise_peak(key, device, micro_batch_size=micro_batch_size, memory_peak_bytes=peak_bytes)
    known = state.predictions.job(key, device)
    if known is not None and known.prediction_id:  # else nothing was told of it
        point = memory_point(known, -(-job.request.global_batch_size // len(job.assignments)))
        if point is not None and peak_bytes > point.memory_bytes:
            state.predictions.larger_peaks.note(key, device, peak_bytes)


def end(
    state: ClusterState, job: JobRecord, phase: Phase, reason: Reason, step: EventEffects, *, message: str = ""
) -> None:
    """End a job for good; the GPUs that it held are shown as its last ones."""
    neighbours: tuple[str, ...] = ()
    left: dict[str, Any] = {}
    if job.holds_gpus:
        neighbours = state.occupancy.neighbours(job)
        left = leave_gpus(state, job, step, has_steps=False, is_complete=phase is Phase.FINISHED)
    step.is_decision_due = True
    ended = with_history(
        job,
        at_ms=state.now_ms,
        kind=phase.value,
        message=message or reason.code,
        phase=phase,
        reason=reason,
        times=job.times.changed(finished_at_ms=state.now_ms, not_before_ms=0),
        **left,
    )
    state.put_job(ended)
    ask_again(state, job.request.key, step)
    step.left.append(ended)
    note_colocation_change(state, neighbours)


def requeue(state: ClusterState, job: JobRecord, reason: Reason, step: EventEffects, *, wait_ms: int) -> None:
    """Put a job back into the queue; only steps inside a believed checkpoint count."""
    neighbours = state.occupancy.neighbours(job)
    left = leave_gpus(state, job, step, has_steps=True)
    job = with_history(
        job,
        at_ms=state.now_ms,
        kind="requeue",
        message=reason.code + _lost_in_words(job),
        phase=Phase.PENDING,
        reason=with_lost_steps(reason, job),
        assignments=(),
        node_ids=(),
        shape=job.shape.changed(memory_reserved_bytes=0, memory_surge=None),
        steps_done=max(job.checkpoint_step, 0),
        times=job.times.changed(not_before_ms=state.now_ms + wait_ms if wait_ms else 0),
        **left,
    )
    state.put_job(job)
    ask_again(state, job.request.key, step)
    step.left.append(job)
    if wait_ms:
        step.wakes_at_ms.append(job.times.not_before_ms)
        step.backoffs.append((job.times.not_before_ms, job.job_id))
    refresh_hold(state, job.job_id)
    # After a restore a later attempt of it than the one that has ended may run somewhere.
    hold_until(state, job, Reason(code="RESTORED"), state.settled_at_ms, step)
    note_colocation_change(state, neighbours)


def _lost_in_words(job: JobRecord) -> str:
    lost = lost_steps(job)
    return agreed(f"; {lost} step(s) lost, for no checkpoint was written") if lost else ""


def hold_until(state: ClusterState, job: JobRecord, reason: Reason, until_ms: int, step: EventEffects) -> None:
    """Let a waiting job wait until an instant at least."""
    if until_ms <= max(job.times.not_before_ms, state.now_ms):
        return
    state.put_job(job.changed(reason=reason, times=job.times.changed(not_before_ms=until_ms)))
    step.wakes_at_ms.append(until_ms)
    step.backoffs.append((until_ms, job.job_id))
    refresh_hold(state, job.job_id)


def restart(state: ClusterState, job: JobRecord, reason: Reason, step: EventEffects) -> None:
    """Start over after an end that was not the job's wish, a bounded number of times and ever later."""
    job = job.counting(restarts=1)
    if job.counts.restarts > job.request.restart_limit:
        numbers = {"restarts": job.counts.restarts - 1, "restart_limit": job.request.restart_limit}
        end(state, job, Phase.FAILED, Reason(code="RESTART_LIMIT", numbers=numbers), step, message=reason.code)
        return
    requeue(state, job, reason, step, wait_ms=backoff_ms(job.counts.restarts))


def expire(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    """End a job that was stopped because its time was over."""
    numbers = {"time_limit_ms": job.request.terms.time_limit_ms}
    end(state, job, Phase.FAILED, Reason(code="TIME_LIMIT", numbers=numbers), step)


def lose(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    """Handle an attempt that certainly runs no more without having said how it ended."""
    job = job.exiting(exit_class="lost")
    if job.after_stop is AfterStop.CANCEL:
        end(state, job, Phase.CANCELLED, Reason(code="CANCELLED"), step)
    elif job.after_stop is AfterStop.EXPIRE:
        expire(state, job, step)
    elif job.after_stop in (AfterStop.REQUEUE, AfterStop.MOVE):
        requeue(state, job.counting(preemptions=1), Reason(code="PREEMPTED"), step, wait_ms=0)
    else:
        restart(state, job, Reason(code="ATTEMPT_LOST"), step)
