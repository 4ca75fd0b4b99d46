"""The life of an attempt across nodes: its parts begin one after the other, and end together.

The node of rank 0 begins and says where the ranks meet; then the others are launched. Where a part ends without
success, is refused or lost, the others are stopped with a checkpoint. What one node says of an end becomes the end of
the attempt when no part is left: until then its GPUs are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import (
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    LaunchRefused,
    PartReport,
    RunningAttempt,
)
from scheduler_service.core.jobs.gang_records import GangAttempt, PartEnd, PartEndKind
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.attempt_orders import launch_commands
from scheduler_service.core.lifecycle.attempts import stop
from scheduler_service.core.lifecycle.prepared_attempts import discard_commands
from scheduler_service.core.records import AfterStop, Phase, Reason
from scheduler_service.core.state import ClusterState

PartEnding = JobStopped | JobFinished | JobFailed | LaunchRefused
_OWN_CLASSES: Final = frozenset({"gpu_oom", "host_oom", "gpu_fault"})
_OUTSIDE_CLASSES: Final = frozenset({"lost", "fenced"})
_KILLED_CODE: Final = -9


def begin_part(
    state: ClusterState, job: JobRecord, node_id: str, report: JobStarted | RunningAttempt, step: EventEffects
) -> bool:
    """Note that a part runs, and launch the others where it is the first; return whether all run now."""
    gang = _gang_of(job)
    if node_id in gang.started_node_ids or node_id not in job.live_node_ids:
        return False
    is_first = node_id == job.node_ids[0]
    if is_first:
        gang = replace(gang, rendezvous_port=report.rendezvous_port, resumed_fence=report.resumed_fence)
    if not gang.rendezvous_port:
        return False
    started = (*gang.started_node_ids, node_id)
    job = job.changed(gang=replace(gang, started_node_ids=started))
    state.put_job(job)
    if is_first:
        step.commands += launch_commands(state, job)
    return set(started) == set(job.node_ids)


def end_part(state: ClusterState, job: JobRecord, event: PartEnding, step: EventEffects) -> PartEnding | None:
    """Note the end of a part, and stop the others unless it was a success.

    Returns:
        The end of the whole attempt, where no part is left; None = some are, or the node had told of this one before.
    """
    if event.node_id not in job.live_node_ids:
        return None
    end = _part_end(event)
    job = job.changed(gang=_with_end(job, event, end))
    state.put_job(job)
    # A gang whose next attempt is being prepared trains on: its parts were told nothing yet.
    is_told = job.phase is Phase.STOPPING and not job.is_preparing
    if job.live_node_ids and end.kind is not PartEndKind.FINISHED and not is_told:
        step.commands += discard_commands(job)
        job = job.moving(preparation=None, target=None)
        stop(state, job, AfterStop.GANG_ENDED, step, reason=Reason(code="STOPPING_WITH_GANG"))
    job = state.jobs[job.job_id]
    return None if job.live_node_ids else _whole_end(job, event)


def lost_part(state: ClusterState, job: JobRecord, node_id: str) -> JobFailed:
    """Return the end of a part that certainly runs no more without having said how it ended."""
    return JobFailed(
        at_ms=state.now_ms,
        job_id=job.job_id,
        attempt=job.attempt,
        fence=job.fence,
        node_id=node_id,
        exit_class="lost",
        detail="nothing is known of its end",
    )


def handling_phase(job: JobRecord, event: PartReport) -> Phase:
    """Return as in which phase the end of a whole gang is handled: the rule of gangs asked for no end of the job."""
    if job.phase is Phase.STOPPING and job.after_stop is not AfterStop.GANG_ENDED:
        return Phase.STOPPING
    return Phase.STARTING if isinstance(event, LaunchRefused) else Phase.RUNNING


def _gang_of(job: JobRecord) -> GangAttempt:
    return job.gang if job.gang is not None else GangAttempt()


def _with_end(job: JobRecord, event: PartEnding, end: PartEnd) -> GangAttempt:
    gang = _gang_of(job)
    was_asked = job.phase is Phase.STOPPING and job.after_stop is not AfterStop.GANG_ENDED
    known = [one for one in (gang.end, end) if one is not None]
    loudest = min(known, key=_order_when_asked if was_asked else _order)
    gang = replace(gang, ended_node_ids=(*gang.ended_node_ids, event.node_id), end=_without_success(loudest, known))
    if isinstance(event, LaunchRefused):
        return gang
    return replace(
        gang,
        steps_done=max(gang.steps_done, event.steps_done),
        checkpoint_step=max(gang.checkpoint_step, getattr(event, "checkpoint_step", -1)),
        memory_peak_bytes=max(gang.memory_peak_bytes, event.memory_peak_bytes),
    )


def _without_success(loudest: PartEnd, known: Sequence[PartEnd]) -> PartEnd:
    """Let no part that left with success speak for one that was killed: what that one had still to write is missing.

    A part that was lost has been killed when its lease was over.
    """
    codes = {one.exit_code or (_KILLED_CODE if one.exit_class == "lost" else 0) for one in known} - {0}
    return loudest if loudest.exit_code or not codes else replace(loudest, exit_code=min(codes))


def _order(end: PartEnd) -> int:
    """Of a gang that no order ended: what came from outside, or was a part's own, before what followed."""
    if end.kind is PartEndKind.FAILED:
        if end.exit_class in _OWN_CLASSES:
            return 0
        if end.exit_class in _OUTSIDE_CLASSES or end.exit_code == _KILLED_CODE:
            return 1
        return 4 if end.exit_class == "communication" else 3
    return {PartEndKind.REFUSED: 2, PartEndKind.STOPPED: 5}.get(end.kind, 6)


def _order_when_asked(end: PartEnd) -> int:
    """Of a gang that was stopped: a part that left with a checkpoint speaks for all."""
    if end.exit_class == "checkpointed":
        return 0
    order = (PartEndKind.STOPPED, PartEndKind.FAILED, PartEndKind.REFUSED, PartEndKind.FINISHED)
    return 1 + order.index(end.kind)


def _part_end(event: PartEnding) -> PartEnd:
    if isinstance(event, JobFinished):
        return PartEnd(kind=PartEndKind.FINISHED, exit_class="done")
    if isinstance(event, LaunchRefused):
        detail = f"node {event.node_id}: {event.message}"
        return PartEnd(kind=PartEndKind.REFUSED, code=event.code, detail=detail, is_final=event.is_final)
    if isinstance(event, JobStopped):
        return PartEnd(
            kind=PartEndKind.STOPPED, exit_class=event.exit_class, exit_code=event.exit_code, detail=_detail(event)
        )
    return PartEnd(
        kind=PartEndKind.FAILED,
        exit_class=event.exit_class,
        exit_code=event.exit_code,
        memory_available_bytes=event.memory_available_bytes,
        detail=_detail(event),
    )


def _detail(event: JobStopped | JobFailed) -> str:
    return f"node {event.node_id}: {event.detail}" if event.detail else ""


def _whole_end(job: JobRecord, event: PartEnding) -> PartEnding:
    """Return the end of a gang whose parts have all ended, as if one node had told of it."""
    gang = _gang_of(job)
    end = gang.end or _part_end(event)
    key: dict[str, Any] = {"at_ms": event.at_ms, "job_id": job.job_id, "attempt": job.attempt, "fence": job.fence}
    if end.kind is PartEndKind.REFUSED:
        return LaunchRefused(**key, code=end.code, message=end.detail, is_final=end.is_final)
    told: dict[str, Any] = {**key, "steps_done": gang.steps_done, "memory_peak_bytes": gang.memory_peak_bytes}
    if end.kind is PartEndKind.FINISHED:
        return JobFinished(**told)
    told |= {"exit_class": end.exit_class, "exit_code": end.exit_code, "checkpoint_step": gang.checkpoint_step}
    told |= {"detail": end.detail}
    if end.kind is PartEndKind.STOPPED:
        return JobStopped(**told)
    return JobFailed(**told, memory_available_bytes=end.memory_available_bytes)
