"""What agents are told of an attempt: the orders that begin it on its nodes, and those that end it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from scheduler_service.core.cluster_view.replica_groups import spread_servers
from scheduler_service.core.commands import CoLocatedLimit, GangPart, LaunchJob, StopJob
from scheduler_service.core.jobs.gang_records import PartEndKind
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.opportunistic_sharing import held_bytes
from scheduler_service.core.lifecycle.prepared_attempts import unlaunched_node_ids
from scheduler_service.core.records import AfterStop, Assignment
from scheduler_service.core.state import ClusterState

LOST_PART_GRACE_MS = 5_000
"""For the parts of a gang of which another one has failed, until they are killed."""

_RANK = attrgetter("rank")
_STOP_CAUSES = {
    AfterStop.CANCEL: "cancelled",
    AfterStop.MOVE: "moved",
    AfterStop.EXPIRE: "time_limit",
    AfterStop.RESTART: "stalled",
    AfterStop.GANG_ENDED: "gang_ended",
}


def _to_launch(job: JobRecord) -> tuple[str, ...]:
    """Return the nodes that are to begin now: of a gang first that of rank 0, then the others at its port."""
    if job.gang is None:
        return job.node_ids
    due = job.node_ids if job.gang.rendezvous_port else job.node_ids[:1]
    return tuple([one for one in due if one not in (*job.gang.started_node_ids, *job.gang.ended_node_ids)])


def _gang_part(state: ClusterState, job: JobRecord, node_id: str) -> GangPart | None:
    if job.gang is None:
        return None
    first = state.nodes.get(job.node_ids[0])
    servers = servers_on(state, job, node_id)
    return GangPart(
        world_size=len(job.assignments),
        group_rank=job.node_ids.index(node_id),
        nodes=len(job.node_ids),
        master_address=first.rendezvous_address if first is not None else "",
        master_port=job.gang.rendezvous_port,
        resumed_fence=job.gang.resumed_fence,
        resumed_node_id=job.node_ids[0] if job.gang.resumed_fence else "",
        first_server=servers.start,
        servers=len(servers),
    )


def _on_node(state: ClusterState, job: JobRecord, node_id: str) -> tuple[Assignment, ...]:
    """Return the GPUs of a job on a node; those of a part that has ended may have gone with their node's new cards."""
    gpus = state.gpus
    return tuple([part for part in job.assignments if part.gpu_id in gpus and gpus[part.gpu_id].node_id == node_id])


def servers_on(state: ClusterState, job: JobRecord, node_id: str) -> range:
    """Return the numbers of the parameter servers that the present attempt has on one of its nodes."""
    ranks = [len(_on_node(state, job, one)) for one in job.node_ids]
    servers = job.request.replicas.servers
    return spread_servers(ranks, servers)[job.node_ids.index(node_id)] if servers and any(ranks) else range(0)


def arrange(
    state: ClusterState, job: JobRecord, assignments: Iterable[Assignment]
) -> tuple[tuple[Assignment, ...], tuple[str, ...], bool]:
    """Return the ranks of an attempt, its nodes with that of rank 0 first, and whether it is a gang across them.

    The ranks of a node of such a gang follow each other, as launchers have it.
    """
    by_rank = sorted(assignments, key=_RANK)
    if len(by_rank) == 1:  # as most are
        return tuple(by_rank), (state.gpus[by_rank[0].gpu_id].node_id,), False
    node_ids = tuple(dict.fromkeys([state.gpus[part.gpu_id].node_id for part in by_rank]))
    if not (job.request.terms.across_nodes and len(node_ids) > 1):
        return tuple(by_rank), node_ids, False
    gpu_ids = [part.gpu_id for node_id in node_ids for part in by_rank if state.gpus[part.gpu_id].node_id == node_id]
    return tuple([Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids)]), node_ids, True


def launch_commands(state: ClusterState, job: JobRecord, node_id: str | None = None) -> list[LaunchJob]:
    """Return the outstanding orders of the present attempt, one per node (or only one node's)."""
    return orders_for(state, job, [node for node in _to_launch(job) if node_id in (None, node)])


def orders_for(state: ClusterState, job: JobRecord, node_ids: Iterable[str]) -> list[LaunchJob]:
    """Return what these nodes are told of an attempt that begins there."""
    others = [state.jobs[other] for other in state.occupancy.neighbours(job)]
    limits = tuple(
        CoLocatedLimit(
            job_id=other.job_id,
            attempt=other.attempt,
            fence=other.fence,
            memory_limit_bytes=other.shape.memory_reserved_bytes,
        )
        for other in others
    )
    return [
        LaunchJob(
            node_id=node,
            job_id=job.job_id,
            attempt=job.attempt,
            fence=job.fence,
            assignments=_on_node(state, job, node),
            micro_batch_size=job.shape.micro_batch_size,
            accumulation_steps=job.shape.accumulation_steps,
            granted_fences=job.granted.fences,
            granted_node_ids=job.granted.node_ids,
            granted_parts=job.granted.parts,
            memory_limit_bytes=job.shape.memory_reserved_bytes,
            memory_held_bytes=held_bytes(job.shape.memory_reserved_bytes, job.shape.memory_surge),
            yields_memory=job.trial is not None and job.trial.is_incoming,
            steps_done=job.steps_done,
            launch=job.submission.launch,
            settings=job.submission.settings,
            co_located_limits=limits,
            gang_part=_gang_part(state, job, node),
            servers=job.request.replicas.servers,
        )
        for node in node_ids
    ]


def stop_commands(job: JobRecord, node_id: str | None = None) -> list[StopJob]:
    """Return the orders that end the present attempt, one per node (or only one node's)."""
    return [
        StopJob(
            node_id=node,
            job_id=job.job_id,
            attempt=job.attempt,
            fence=job.fence,
            checkpoint=job.after_stop is not AfterStop.CANCEL,
            cause=_STOP_CAUSES.get(job.after_stop, "preempted"),
            grace_ms_max=_grace_ms_max(job),
        )
        for node in ((node_id,) if node_id is not None else job.live_node_ids)
    ]


def _grace_ms_max(job: JobRecord) -> int:
    """Return how long the rest of a gang may take: without the part that failed it can save little, as on one node."""
    end = job.gang.end if job.gang is not None and job.after_stop is AfterStop.GANG_ENDED else None
    return LOST_PART_GRACE_MS if end is not None and end.kind in (PartEndKind.FAILED, PartEndKind.REFUSED) else 0


def without_unlaunched(job: JobRecord) -> JobRecord:
    """Return a job that is being stopped without the parts of its gang that were not launched: they never will be."""
    never = unlaunched_node_ids(job)
    if job.gang is None or not never:
        return job
    return job.changed(gang=replace(job.gang, ended_node_ids=(*job.gang.ended_node_ids, *never)))
