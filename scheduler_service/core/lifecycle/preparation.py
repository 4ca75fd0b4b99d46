"""Early initialisation: the next attempt of a job that is moved starts next to the present one, which trains on.

The attempt has a number, a fence and processes of its own, and makes no step: it waits for its launch, which is ordered
after the confirmed end of the present attempt, as without it. What goes wrong meanwhile gives it up and leaves the
present attempt as it was; a job of which an attempt was lost so is moved without preparation from then on.

The parts of a gang across nodes are ordered at once, without the port at which their ranks meet: that comes with their
launches, which follow each other as those of every gang. The present attempt is stopped when all parts are prepared.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.cluster_view.replica_groups import with_servers
from scheduler_service.core.commands import PrepareJob
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import AttemptPrepared, PreparationEnded, PreparationReport
from scheduler_service.core.jobs.gang_records import GangAttempt
from scheduler_service.core.jobs.job_parts import Target
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.jobs.preparation_records import Preparation
from scheduler_service.core.lifecycle.attempt_orders import arrange, launch_commands, orders_for, stop_commands
from scheduler_service.core.lifecycle.prepared_attempts import discard_commands, next_attempt
from scheduler_service.core.records import PREPARED_PARTS, PREPARED_STARTS, AfterStop, Assignment, Phase, Reason
from scheduler_service.core.state import ClusterState

PREPARATION_MS_MAX = 60_000
"""After this time the present attempt is stopped, however far the next one is."""
NOT_PREPARABLE = "NOT_PREPARABLE"
"""An agent's code for what can only begin from nothing; the move goes on without preparation."""


def can_prepare(state: ClusterState, job: JobRecord, assignments: tuple[Assignment, ...]) -> bool:
    """Return whether the next attempt of a running job can be started early, on all of its nodes.

    Args:
        state: Knows the nodes.
        job: Runs.
        assignments: Where it goes.
    """
    node_ids = {state.gpus[part.gpu_id].node_id for part in assignments}
    spans = max(len(job.node_ids), len(node_ids)) > 1
    # What spans nodes without having said so is not reported part by part.
    if not job.node_ids or (spans and not job.request.terms.across_nodes):
        return False
    wanted = PREPARED_PARTS if spans else PREPARED_STARTS
    nodes = [state.nodes[node_id] for node_id in node_ids]
    if not all(node.connected and wanted in node.enforcements for node in nodes):
        return False
    # Parameter servers have a program of their own, which would not wait for the word to begin.
    has_servers = job.request.replicas.servers > 0
    is_wanted = not (job.request.no_preparation or job.counts.lost_preparations or has_servers)
    return is_wanted and job.phase is Phase.RUNNING


def order_preparation(state: ClusterState, job: JobRecord, target: Target, step: EventEffects) -> None:
    """Have the next attempt of a job, which goes to that target, started early; `job` was not stored yet."""
    attempt, fence = next_attempt(state, job)
    _, node_ids, _ = arrange(state, job, target.assignments)
    preparation = Preparation(
        attempt=attempt,
        fence=fence,
        until_ms=state.now_ms + PREPARATION_MS_MAX,
        node_id=node_ids[0],
        other_node_ids=node_ids[1:],
    )
    state.put_job(job.moving(preparation=preparation, prepared_attempt=attempt))
    step.wakes_at_ms.append(preparation.until_ms)
    step.commands += preparation_commands(state, state.jobs[job.job_id])


def preparation_commands(state: ClusterState, job: JobRecord, node_id: str | None = None) -> list[PrepareJob]:
    """Return the orders that start the next attempt of a job early, one per node (or only one node's).

    There are none where it is not waited for, nor where GPUs of its place have gone: the launch will see to that.
    """
    if job.moves.preparation is None or job.moves.target is None or job.moves.preparation.is_handing_over:
        return []
    if not all(part.gpu_id in state.gpus for part in job.moves.target.assignments):
        return []
    node_ids = [one for one in job.moves.preparation.nodes(job.node_ids) if node_id in (None, one)]
    launched = _as_launched(state, job, job.moves.target, job.moves.preparation)
    return [PrepareJob(launch=order) for order in orders_for(state, launched, node_ids)]


def order_again(state: ClusterState, job: JobRecord, node_id: str, step: EventEffects) -> None:
    """Repeat what a node that joins is to prepare; it says again what is prepared there."""
    if job.moves.preparation is not None and node_id in job.moves.preparation.prepared_node_ids and job.is_preparing:
        others = tuple(one for one in job.moves.preparation.prepared_node_ids if one != node_id)
        job = job.moving(preparation=replace(job.moves.preparation, prepared_node_ids=others))
        state.put_job(job)
    step.commands += preparation_commands(state, job, node_id)


def _as_launched(state: ClusterState, job: JobRecord, target: Target, preparation: Preparation) -> JobRecord:
    """Return the job as its next attempt will have it, as far as an agent is told."""
    assignments, node_ids, is_gang = arrange(state, job, target.assignments)
    return job.changed(
        attempt=preparation.attempt,
        fence=preparation.fence,
        assignments=assignments,
        node_ids=node_ids,
        gang=GangAttempt() if is_gang else None,
        shape=target.shape,
        request=with_servers(job.request, target.servers),
    )


def note_prepared(state: ClusterState, event: AttemptPrepared, step: EventEffects) -> None:
    """Stop the present attempt when all parts of its next one wait for that."""
    job = _awaited(state, event)
    if job is None or job.moves.preparation is None:
        return
    awaited = job.moves.preparation.nodes(job.node_ids)
    # What names no node is about all of it.
    told = (*job.moves.preparation.prepared_node_ids, event.node_id) if event.node_id else awaited
    prepared = tuple(one for one in awaited if one in told)
    job = job.moving(preparation=replace(job.moves.preparation, prepared_node_ids=prepared))
    state.put_job(job)
    if prepared == awaited:
        _hand_over(state, job, step, message=f"attempt {event.attempt} is prepared")


def note_preparation_ended(state: ClusterState, event: PreparationEnded, step: EventEffects) -> None:
    """Go on without a prepared attempt: where it was lost while the present one trained, that stays where it is.

    Where a part of a gang has ended, the others are given up.
    """
    job = _awaited(state, event, or_handed_over=True)
    if job is None:
        return
    was_awaited = job.is_preparing
    where = f" on node {event.node_id}" if event.node_id and len(_nodes(job)) > 1 else ""
    message = f"attempt {event.attempt}{where}: {event.code}: {event.message}"
    step.commands += discard_commands(job, ended_node_id=event.node_id)
    job = job.moving(preparation=None)
    if not was_awaited:
        state.put_job(with_history(job, at_ms=state.now_ms, kind="preparation", message=message))
    elif event.code == NOT_PREPARABLE:
        state.put_job(with_history(job, at_ms=state.now_ms, kind="preparation", message=message))
        step.commands += stop_commands(job)
    else:
        _stay(state, job, message)
        step.is_decision_due = True


def lose_prepared_place(state: ClusterState, job: JobRecord, node_id: str, step: EventEffects) -> bool:
    """Let a job train on where it is when the node that prepares it is lost; False = that one does not."""
    is_hit = job.is_preparing and node_id in _nodes(job) and node_id not in job.node_ids
    if job.moves.preparation is None or not is_hit:
        return False
    message = f"attempt {job.moves.preparation.attempt}: its node {node_id} is lost"
    step.commands += discard_commands(job)
    _stay(state, job.moving(preparation=None), message)
    return True


def look_after_preparations(state: ClusterState, step: EventEffects) -> None:
    """Stop attempts whose next one was waited for long enough."""
    for job_id in tuple(state.in_phase(Phase.STOPPING)):
        job = state.jobs[job_id]
        if job.moves.preparation is not None and job.is_preparing:
            if state.now_ms >= job.moves.preparation.until_ms:
                _hand_over(state, job, step, message="not prepared in time")
            else:
                step.wakes_at_ms.append(job.moves.preparation.until_ms)


def reissue_orders(state: ClusterState, step: EventEffects) -> None:
    """Repeat the orders about attempts whose effect is outstanding: launches, stops, and preparations."""
    for job_id in state.in_phase(Phase.STARTING):
        step.commands += launch_commands(state, state.jobs[job_id])
    for job_id in state.in_phase(Phase.STOPPING):
        job = state.jobs[job_id]
        step.commands += preparation_commands(state, job) if job.is_preparing else stop_commands(job)


def give_up_preparation(job: JobRecord, step: EventEffects) -> JobRecord:
    """Return a job without its prepared attempt, which is told to end; one that trained on is told to stop."""
    was_awaited = job.is_preparing
    step.commands += discard_commands(job)
    job = job.moving(preparation=None)
    if was_awaited:
        step.commands += stop_commands(job)
    return job


def _nodes(job: JobRecord) -> tuple[str, ...]:
    return () if job.moves.preparation is None else job.moves.preparation.nodes(job.node_ids)


def _hand_over(state: ClusterState, job: JobRecord, step: EventEffects, *, message: str) -> None:
    if job.moves.preparation is None:
        return
    preparation = replace(job.moves.preparation, is_handing_over=True)
    handing = job.moving(preparation=preparation, moved_at_ms=state.now_ms)
    handed = with_history(handing, at_ms=state.now_ms, kind="preparation", message=message)
    state.put_job(handed)
    step.commands += stop_commands(handed)


def _stay(state: ClusterState, job: JobRecord, message: str) -> None:
    """Let a job go on where it is; its place at the target is free again."""
    stayed = with_history(
        job.counting(lost_preparations=1),
        at_ms=state.now_ms,
        kind="preparation",
        message=message,
        phase=Phase.RUNNING,
        after_stop=AfterStop.NOTHING,
        moves=job.moves.changed(target=None, moved_at_ms=0),
        reason=Reason(code="MOVE_WITHDRAWN"),
    )
    state.put_job(stayed)


def _awaited(state: ClusterState, event: PreparationReport, *, or_handed_over: bool = False) -> JobRecord | None:
    """Return the job that waits for this attempt; None = a report that came too late."""
    job = state.jobs.get(event.job_id)
    if job is None or job.moves.preparation is None:
        return None
    is_meant = (job.moves.preparation.attempt, job.moves.preparation.fence) == (event.attempt, event.fence)
    return job if is_meant and (job.is_preparing or or_handed_over) else None
