"""The pause of an attempt across nodes: each node holds its part, and the attempt stands still when all of them do.

All or none: where a part refuses, goes on before the others, or is not heard of in time, the others are told to go on,
and each node lets its part go on by itself when its pause is over. Ranks that step together are within one step of each
other when the last part is held, since those that still run wait for those that do not.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.commands import ResumeJob
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import AttemptPaused, AttemptResumed, PauseRefused, RunningAttempt
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.records import Phase
from scheduler_service.core.sharing.pausing import (
    note_pause_refused,
    note_paused,
    note_resumed,
    outstanding_commands,
    resume_commands,
)
from scheduler_service.core.state import ClusterState

PauseReport = AttemptPaused | AttemptResumed | PauseRefused


def report_pause(state: ClusterState, job: JobRecord, event: PauseReport, step: EventEffects) -> None:
    """Apply what one node says of the pause of its part; one that is being stopped goes on anyway."""
    if job.phase is Phase.STOPPING or event.node_id not in job.live_node_ids:
        return
    if isinstance(event, AttemptPaused):
        _part_paused(state, job, event.node_id, event, step)
    elif isinstance(event, AttemptResumed):
        _part_resumed(state, job, event.node_id, event, step)
    elif job.phase is not Phase.PAUSED:
        _part_refused(state, job, event, step)


def align_part_pause(
    state: ClusterState, job: JobRecord, node_id: str, listed: RunningAttempt, step: EventEffects
) -> None:
    """Note whether a part that a joining node lists stands still, and repeat the order about it that had no effect."""
    if listed.is_paused and not _is_paused(job, node_id):
        _part_paused(state, job, node_id, listed, step)
    elif not listed.is_paused and _is_paused(job, node_id):
        _part_resumed(state, job, node_id, listed, step)
    else:
        step.commands += [order for order in outstanding_commands(job) if order.node_id == node_id]


def is_part_paused(job: JobRecord, node_id: str) -> bool:
    """Return whether what a node runs of a job is believed to stand still."""
    return _is_paused(job, node_id) if job.gang is not None else job.phase is Phase.PAUSED


def _is_paused(job: JobRecord, node_id: str) -> bool:
    return job.gang is not None and node_id in job.gang.paused_node_ids


def _part_paused(
    state: ClusterState, job: JobRecord, node_id: str, event: AttemptPaused | RunningAttempt, step: EventEffects
) -> None:
    job = _with_paused(job, node_id, is_paused=True)
    state.put_job(job)
    if job.phase is Phase.RUNNING and all(_is_paused(job, one) for one in job.live_node_ids):
        note_paused(state, job, event, step)
    elif job.phase is not Phase.PAUSED and job.pause is None:
        step.commands += _resume_parts(job)


def _part_resumed(
    state: ClusterState, job: JobRecord, node_id: str, event: AttemptResumed | RunningAttempt, step: EventEffects
) -> None:
    """Let the others go on too: they would wait for nothing. What was not believed to stand still is no news."""
    if not _is_paused(job, node_id):
        return
    job = _with_paused(job, node_id, is_paused=False)
    state.put_job(job)
    if job.phase is Phase.PAUSED:
        step.commands += _resume_parts(job)
        note_resumed(state, job, event, step)
    elif job.pause is not None:
        step.commands += resume_commands(job)
        message = f"node {node_id} goes on before all stand still"
        state.put_job(with_history(job, at_ms=state.now_ms, kind="pause", message=message, pause=None))
        step.is_decision_due = True


def _part_refused(state: ClusterState, job: JobRecord, event: PauseRefused, step: EventEffects) -> None:
    if job.pause is None:
        return
    step.commands += [order for order in resume_commands(job) if order.node_id != event.node_id]
    note_pause_refused(state, job, replace(event, message=f"node {event.node_id}: {event.message}"), step)


def _resume_parts(job: JobRecord) -> list[ResumeJob]:
    return [order for order in resume_commands(job) if _is_paused(job, order.node_id)]


def _with_paused(job: JobRecord, node_id: str, *, is_paused: bool) -> JobRecord:
    if job.gang is None:
        return job
    others = tuple([one for one in job.gang.paused_node_ids if one != node_id])
    return job.changed(gang=replace(job.gang, paused_node_ids=(*others, node_id) if is_paused else others))
