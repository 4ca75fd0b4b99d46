"""Numbers of attempts, those that are only prepared among them, and the end of one that is not needed."""

from __future__ import annotations

from scheduler_service.core.commands import StopJob
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.state import ClusterState


def next_attempt(state: ClusterState, job: JobRecord) -> tuple[int, int]:
    """Return a number and a fence that no attempt of a job has had, not even one that was only prepared."""
    state.next_fence += 1
    return max(job.attempt, job.moves.prepared_attempt) + 1, state.next_fence - 1


def discard_commands(job: JobRecord, *, ended_node_id: str | None = None) -> list[StopJob]:
    """Return the orders that give up the attempt that is prepared for a job; none where there is none.

    Args:
        job: Whose it is.
        ended_node_id: Where nothing of it runs any more; empty = nowhere does anything.
    """
    if job.moves.preparation is None or ended_node_id == "":
        return []
    key = job.moves.preparation.attempt, job.moves.preparation.fence
    return [_discard(job, one, *key) for one in job.moves.preparation.nodes(job.node_ids) if one != ended_node_id]


def unlaunched_node_ids(job: JobRecord) -> tuple[str, ...]:
    """Return the nodes of a gang that wait with their launch until its first one has said where the ranks meet."""
    if job.gang is None or job.gang.rendezvous_port:
        return ()
    return tuple([one for one in job.node_ids[1:] if one not in job.gang.ended_node_ids])


def discard_unlaunched(job: JobRecord) -> list[StopJob]:
    """Return the orders that give up the parts of a gang that were started early and will not be launched."""
    if job.gang is None or not job.gang.is_prepared:
        return []
    return [_discard(job, node_id, job.attempt, job.fence) for node_id in unlaunched_node_ids(job)]


def _discard(job: JobRecord, node_id: str, attempt: int, fence: int) -> StopJob:
    return StopJob(
        node_id=node_id, job_id=job.job_id, attempt=attempt, fence=fence, checkpoint=False, cause="not_needed"
    )
