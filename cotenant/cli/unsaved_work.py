"""What a stop takes from jobs that never wrote a checkpoint, told before it is ordered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cotenant import quantities
from cotenant.cli.session import tell
from cotenant.client import SchedulerClient
from cotenant.counted_nouns import agreed
from cotenant.v1 import scheduling_pb2


def tell_unsaved_work(jobs: Iterable[scheduling_pb2.Job]) -> None:
    """Warns of each job that trains and has written no checkpoint so far."""
    for job in jobs:
        if job.unsaved_ms or job.unsaved_steps:
            took = quantities.format_duration(job.unsaved_ms)
            made = agreed(f"{job.unsaved_steps:,} step(s) made in {took}") if job.unsaved_steps else f"{took} of work"
            tell(
                f"warning: {job.job_id} {job.spec.name} has written no checkpoint so far: unless its script writes one "
                f"when it is asked to stop, {made} would be lost",
                style="yellow",
            )


def jobs_on_node(client: SchedulerClient, node_id: str) -> Sequence[scheduling_pb2.Job]:
    """Returns the jobs that start or run on a node; none of a node that is not known.

    Raises:
        CotenantError: The scheduler does not answer.
    """
    on_gpus = client.list_jobs(phases=(scheduling_pb2.JOB_PHASE_STARTING, scheduling_pb2.JOB_PHASE_RUNNING))
    return [job for job in on_gpus if node_id in (job.node_id, *job.node_ids)]
