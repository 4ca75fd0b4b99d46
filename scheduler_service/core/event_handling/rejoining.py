"""A node joins: what the engine believes to run there is brought into line with what the node says."""

from __future__ import annotations

from scheduler_service.core import events
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling.job_events import confirm_start, confirm_whole_start, has_started, lose_part
from scheduler_service.core.gangs.gang_attempts import begin_part
from scheduler_service.core.gangs.gang_pauses import align_part_pause
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.attempt_orders import launch_commands, stop_commands
from scheduler_service.core.lifecycle.attempts import lose
from scheduler_service.core.lifecycle.preparation import order_again
from scheduler_service.core.records import Phase
from scheduler_service.core.sharing.pausing import note_paused, note_resumed, outstanding_commands
from scheduler_service.core.state import ClusterState


def rejoin(
    state: ClusterState, job: JobRecord, node_id: str, step: EventEffects, *, listed: events.RunningAttempt | None
) -> None:
    """Bring an attempt into line with what its node says on joining.

    An attempt that is still to start is ordered again: agents start a (job, attempt) at most once, so this is safe
    where declaring it lost might run it twice. Where one of its GPUs has gone, the node could only refuse it.

    Args:
        state: Knows the job.
        job: Holds GPUs of the node.
        node_id: Joins.
        step: Takes the commands.
        listed: What the node says of the attempt; None = it does not know it.
    """
    if job.gang is not None:
        _rejoin_part(state, job, node_id, step, listed=listed)
        return
    has_its_gpus = all(gpu_id in state.gpus for gpu_id in job.gpu_ids)
    if listed is not None and job.is_preparing:
        order_again(state, job, node_id, step)
    elif listed is not None and job.phase is Phase.STOPPING:
        step.commands += stop_commands(job, node_id)
    elif listed is not None:
        if job.phase is Phase.STARTING:
            confirm_start(state, job)
        _align_pause(state, state.jobs[job.job_id], listed, step)
    elif job.phase is Phase.STARTING and has_its_gpus:
        step.commands += launch_commands(state, job, node_id)
    else:
        lose(state, job, step)


def _rejoin_part(
    state: ClusterState, job: JobRecord, node_id: str, step: EventEffects, *, listed: events.RunningAttempt | None
) -> None:
    """Bring one part of a gang into line: one that may not have begun is ordered again, when its time has come."""
    if node_id not in job.live_node_ids:
        return
    if listed is not None and job.is_preparing:
        order_again(state, job, node_id, step)
    elif listed is not None and job.phase is Phase.STOPPING:
        step.commands += stop_commands(job, node_id)
    elif listed is not None:
        if job.phase is Phase.STARTING and begin_part(state, job, node_id, listed, step):
            confirm_whole_start(state, state.jobs[job.job_id], step)
        align_part_pause(state, state.jobs[job.job_id], node_id, listed, step)
    elif job.phase is Phase.STARTING and not has_started(job, node_id):
        has_its_gpus = all(gpu_id in state.gpus for gpu_id in job.gpu_ids)
        if has_its_gpus:
            step.commands += launch_commands(state, job, node_id)
        else:
            lose_part(state, job, node_id, step)
    else:
        lose_part(state, job, node_id, step)


def _align_pause(state: ClusterState, job: JobRecord, listed: events.RunningAttempt, step: EventEffects) -> None:
    """Note whether a listed attempt stands still, and repeat the order about it that has not taken effect."""
    if listed.is_paused and job.phase is Phase.RUNNING:
        note_paused(state, job, listed, step)
    elif not listed.is_paused and job.phase is Phase.PAUSED:
        note_resumed(state, job, listed, step)
    else:
        step.commands += outstanding_commands(job)
