"""Which running jobs can be paused where they are; policies ask before they decide, the plan check asks again."""

from __future__ import annotations

from scheduler_service.core.records import PAUSING_ENFORCEMENTS, Reason
from scheduler_service.core.view import RunningJob, SchedulingView


def pause_obstacle(view: SchedulingView, job: RunningJob) -> Reason | None:
    """Return why a running job cannot be paused where it is; None = it can. Whoever wanted that may stop it.

    Only one tree of processes is ever paused: the ranks of a gang wait for each other, and under MPS a client that
    stands still holds others up. A node whose agent does not say that it can pause, because it is older or
    uses MPS, cannot.

    Args:
        view: Shows the job's node.
        job: One of the view's running jobs.
    """
    entry = view.gpus.get(job.assignments[0].gpu_id)
    node = view.nodes.get(entry.node_id) if entry is not None else None
    can_pause = node is not None and not PAUSING_ENFORCEMENTS.isdisjoint(node.enforcements)
    if can_pause and len(job.assignments) == 1:
        return None
    return Reason(code="NOT_PAUSABLE", numbers={"gpus_count": len(job.assignments)}, job_ids=(job.request.job_id,))
