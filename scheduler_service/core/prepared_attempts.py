"""Numbers of attempts, those that are only prepared among them, and the end of one that is not needed."""

from __future__ import annotations

from scheduler_service.core.commands import StopJob
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.state import ClusterState


def next_attempt(state: ClusterState, job: JobRecord) -> tuple[int, int]:
    """Return a number and a fence that no attempt of a job has had, not even one that was only prepared."""
    state.next_fence += 1
    return max(job.attempt, job.prepared_attempt) + 1, state.next_fence - 1


def discard_commands(job: JobRecord) -> list[StopJob]:
    """Return the orders that give up the attempt that is prepared for a job; none where there is none."""
    if job.preparation is None:
        return []
    return [
        StopJob(
            node_id=node_id,
            job_id=job.job_id,
            attempt=job.preparation.attempt,
            fence=job.preparation.fence,
            checkpoint=False,
            cause="not_needed",
        )
        for node_id in job.preparation.nodes(job.node_ids)
    ]
