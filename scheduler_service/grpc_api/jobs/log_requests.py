"""Which log of a job is meant, and whether there can be one."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.v1 import node_agent_pb2, scheduling_pb2
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.attempt_orders import servers_on
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import FieldViolation, WrongJobPhaseError
from scheduler_service.grpc_api import validation


def log_violations(request: scheduling_pb2.ReadJobLogRequest) -> Iterator[FieldViolation]:
    """Yield what is wrong with asking for a log."""
    yield from validation.job_id_violations(request.job_id)
    if request.attempt < 0:
        yield FieldViolation(field="attempt", description="must be 0 (the newest) or the number of an attempt")
    if request.tail_bytes < 0:
        yield FieldViolation(field="tail_bytes", description="must not be negative")


def attempt_key(job: JobRecord, attempt: int) -> node_agent_pb2.AttemptKey:
    """Return which attempt's log is meant; only the newest one's fence is known for sure.

    Raises:
        WrongJobPhaseError: That attempt never was, or never printed.
    """
    if job.attempt == 0:
        raise WrongJobPhaseError(f"{job.job_id} has not started yet, so there is no log; explain the job to see why")
    if attempt > job.attempt:
        raise WrongJobPhaseError(f"{job.job_id} has had {job.attempt} attempts; ask for one of these")
    is_newest = attempt in (0, job.attempt)
    if is_newest and job.exit.exit_class == "refused":
        raise WrongJobPhaseError(f"{job.job_id} printed nothing, its node refused to start it: {job.exit.exit_detail}")
    return node_agent_pb2.AttemptKey(
        job_id=job.job_id, attempt=attempt or job.attempt, fence=job.fence if is_newest else 0
    )


def rank_violations(request: scheduling_pb2.ReadJobLogRequest, job: JobRecord) -> Iterator[FieldViolation]:
    """Check that a job can have had such a rank or server; how many an attempt had only its node knows."""
    if request.HasField("server"):
        yield from _server_violations(request.server, job)
    rank = request.rank
    ranks = max(job.request.allowed_gpus or (job.request.gpus,)) if _has_ranks(job) else 1
    if not 0 <= rank < ranks:
        found = (
            f"{job.job_id} has ranks 0 to {ranks - 1}" if ranks > 1 else f"{job.job_id} is one process: leave it out"
        )
        yield FieldViolation(field="rank", description=f"{rank} is no rank of the job, {found}")


def _server_violations(server: int, job: JobRecord) -> Iterator[FieldViolation]:
    servers = max(job.request.replicas.allowed_servers, default=0)
    if not 0 <= server < servers:
        found = f"has servers 0 to {servers - 1}" if servers else "has no parameter servers: leave it out"
        yield FieldViolation(field="server", description=f"{server} is no server of the job, {job.job_id} {found}")


def log_nodes(state: ClusterState, job: JobRecord, request: scheduling_pb2.ReadJobLogRequest) -> list[str]:
    """Return the nodes of the present attempt, that of the rank or server first whose log is asked for."""
    if request.HasField("server"):
        likely = [one for one in job.node_ids if request.server in servers_on(state, job, one)]
    else:
        gpu_ids = [part.gpu_id for part in job.assignments if part.rank == request.rank and part.gpu_id in state.gpus]
        likely = [state.gpus[gpu_id].node_id for gpu_id in gpu_ids]
    return list(dict.fromkeys([*likely, *job.node_ids])) if _has_ranks(job) else list(job.node_ids[:1])


def _has_ranks(job: JobRecord) -> bool:
    """Say whether there may be several logs: of ranks, or of the launchers of several nodes."""
    return bool(job.submission.launch.get("ranks")) or job.request.terms.across_nodes
