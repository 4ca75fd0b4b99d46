"""What a fact about a machine does: joining with what it runs, falling silent, being lost, a GPU going bad."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.commands import StopJob
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling.job_events import lose_part
from scheduler_service.core.event_handling.rejoining import rejoin
from scheduler_service.core.events import (
    CommandGiven,
    GpuHealthChanged,
    IncarnationBegan,
    NodeDisconnected,
    NodeForgotten,
    NodeJoined,
    NodeLost,
    RunningAttempt,
)
from scheduler_service.core.jobs.job_records import AbandonedAttempt, JobRecord
from scheduler_service.core.lifecycle.attempts import hold_until, lose, stop
from scheduler_service.core.lifecycle.migration import withdraw_move
from scheduler_service.core.lifecycle.preparation import give_up_preparation, lose_prepared_place, order_again
from scheduler_service.core.predictions.prediction_requests import (
    ask_about_devices,
    ask_about_sharing,
    refresh_hold_of_waiting,
    ways_now,
)
from scheduler_service.core.records import AfterStop, Node, Phase, Reason
from scheduler_service.core.state import ClusterState


def join(state: ClusterState, event: NodeJoined, step: EventEffects) -> None:
    """Take a node in and bring what the engine believes into line with what the node says."""
    node_id = event.node.node_id
    believed = tuple(
        job_id for job_id in state.occupancy.jobs_on_node(node_id) if _has_attempt_on(state, job_id, node_id)
    )
    known_devices = frozenset(state.devices)
    had_gpus = bool(state.gpus)
    calibrations, sharing = dict(state.calibrations), ways_now(state)
    state.put_node(_cleaned(state, event.node))
    _drop_abandoned(state, node_id)
    listed = {running.job_id: running for running in event.attempts if _is_current(state, node_id, running)}
    for running in event.attempts:
        if listed.get(running.job_id) is not running:
            _stop_stale_attempt(state, node_id, running, step)
    for job_id in believed:
        rejoin(state, state.jobs[job_id], node_id, step, listed=listed.get(job_id))
    for job_id in tuple(job_id for job_id in state.occupancy.jobs_on_node(node_id) if job_id not in believed):
        # It is prepared here, while its attempt runs on another node; other moves to here need no order yet.
        order_again(state, state.jobs[job_id], node_id, step)
    devices = frozenset(gpu.device for gpu in event.node.gpus)
    measured = frozenset(name for name in devices if state.calibrations.get(name) != calibrations.get(name))
    if not had_gpus or (devices - known_devices) | measured:
        ask_about_devices(state, (devices - known_devices) | measured, step)
    ask_about_sharing(state, sharing, step)
    step.is_decision_due = True


def _cleaned(state: ClusterState, node: Node) -> Node:
    """Return the node as connected and as cordoned as it was, without GPUs that another node owns."""
    kept = []
    for gpu in node.gpus:
        known = state.gpus.get(gpu.gpu_id)
        if known is None or known.node_id == node.node_id:
            kept.append(gpu)
    before = state.nodes.get(node.node_id)
    cordon = (before.is_cordoned, before.is_draining) if before is not None else (False, False)
    return replace(node, connected=True, gpus=tuple(kept), is_cordoned=cordon[0], is_draining=cordon[1])


def _is_current(state: ClusterState, node_id: str, running: RunningAttempt) -> bool:
    job = state.jobs.get(running.job_id)
    is_same = job is not None and (job.attempt, job.fence) == (running.attempt, running.fence)
    return is_same and job is not None and job.holds_gpus and node_id in job.live_node_ids


def _stop_stale_attempt(state: ClusterState, node_id: str, running: RunningAttempt, step: EventEffects) -> None:
    """Order the end of an unwanted attempt; its GPUs are taken until the node confirms."""
    abandoned = AbandonedAttempt(
        job_id=running.job_id,
        attempt=running.attempt,
        fence=running.fence,
        node_id=node_id,
        gpu_ids=running.gpu_ids,
        incarnation_id=running.incarnation_id,
    )
    state.occupancy.put_abandoned(abandoned)
    refresh_hold_of_waiting(state, abandoned.job_id)
    step.commands.append(stop_abandoned(abandoned))


def stop_abandoned(abandoned: AbandonedAttempt) -> StopJob:
    """Return the order that ends an attempt given up."""
    return StopJob(
        node_id=abandoned.node_id,
        job_id=abandoned.job_id,
        attempt=abandoned.attempt,
        fence=abandoned.fence,
        # A restored state may not know what it did, and a user may want it.
        checkpoint=True,
        cause="stale",
        incarnation_id=abandoned.incarnation_id,
    )


def _drop_abandoned(state: ClusterState, node_id: str) -> None:
    for abandoned in tuple(state.abandoned_attempts.values()):
        if abandoned.node_id == node_id:
            state.occupancy.drop_abandoned(abandoned.job_id, abandoned.attempt, abandoned.fence, node_id)
            refresh_hold_of_waiting(state, abandoned.job_id)


def disconnect(state: ClusterState, event: NodeDisconnected, step: EventEffects) -> None:
    """Give a silent node no new work; its jobs run on under their leases."""
    node = state.nodes.get(event.node_id)
    if node is not None and node.connected:
        state.put_node(replace(node, connected=False))
        step.is_decision_due = True


def lose_node(state: ClusterState, event: NodeLost, step: EventEffects) -> None:
    """Give up everything that ran on a node whose leases are over."""
    node = state.nodes.get(event.node_id)
    if node is None:
        return
    state.put_node(replace(node, connected=False))
    _drop_abandoned(state, event.node_id)
    for job_id in state.occupancy.jobs_on_node(event.node_id):
        if lose_prepared_place(state, state.jobs[job_id], event.node_id, step):
            continue
        job = _without_target_on(state, state.jobs[job_id], event.node_id, step)
        state.put_job(job)
        if not _has_attempt_on(state, job_id, event.node_id):
            continue
        if job.gang is not None:
            lose_part(state, job, event.node_id, step)
            continue
        others = tuple(other for other in job.node_ids if other != event.node_id)
        if not others:
            lose(state, job, step)
        elif job.phase is not Phase.STOPPING:
            stop(state, replace(job, node_ids=others), AfterStop.REQUEUE, step)
    step.is_decision_due = True


def forget_node(state: ClusterState, event: NodeForgotten, step: EventEffects) -> None:
    """Give up a node with everything that ran there; its name and its GPUs may belong to another one."""
    if event.node_id in state.nodes:
        lose_node(state, NodeLost(at_ms=event.at_ms, node_id=event.node_id), step)
        sharing = ways_now(state)
        state.drop_node(event.node_id)
        ask_about_sharing(state, sharing, step)


def _has_attempt_on(state: ClusterState, job_id: str, node_id: str) -> bool:
    """Say whether the present attempt of a job runs there; it may only be about to move there."""
    return any(state.gpus[gpu_id].node_id == node_id for gpu_id in state.jobs[job_id].gpu_ids if gpu_id in state.gpus)


def _without_target_on(state: ClusterState, job: JobRecord, node_id: str, step: EventEffects) -> JobRecord:
    target_gpu_ids = [part.gpu_id for part in job.moves.target.assignments] if job.moves.target is not None else []
    is_hit = any(state.gpus[gpu_id].node_id == node_id for gpu_id in target_gpu_ids if gpu_id in state.gpus)
    return withdraw_move(job, step) if is_hit else job


def keep_for_audit(state: ClusterState, event: CommandGiven, step: EventEffects) -> None:
    """Change nothing: the fact is there for the audit."""


def change_health(state: ClusterState, event: GpuHealthChanged, step: EventEffects) -> None:
    """Give a bad GPU no new work, or take a good one back; what runs there is the agent's to report."""
    view = state.gpus.get(event.gpu_id)
    if view is None or view.gpu.healthy is event.healthy:
        return
    node = state.nodes[view.node_id]
    gpus = tuple(replace(gpu, healthy=event.healthy) if gpu.gpu_id == event.gpu_id else gpu for gpu in node.gpus)
    state.put_node(replace(node, gpus=gpus))
    step.is_decision_due = True


def begin_incarnation(state: ClusterState, event: IncarnationBegan, step: EventEffects) -> None:
    """Leave out the fences of the former cluster, and start nothing before its attempts have ended."""
    state.next_fence = max(state.next_fence, event.next_fence)
    state.settled_at_ms = max(state.settled_at_ms, event.settled_at_ms)
    for job_id in tuple(state.in_phase(Phase.PENDING)):
        hold_until(state, state.jobs[job_id], Reason(code="RESTORED"), state.settled_at_ms, step)
    for job_id in tuple(state.in_phase(Phase.STOPPING)):
        # Its fence is none that this incarnation gave.
        state.put_job(give_up_preparation(state.jobs[job_id], step))
    for job_id in tuple(state.in_phase(Phase.STARTING)):
        # What came of that order, and a later attempt elsewhere, the backup does not know: it is not given again.
        lose(state, state.jobs[job_id], step)
