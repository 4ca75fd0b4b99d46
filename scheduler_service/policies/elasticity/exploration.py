"""Which running jobs try another number of GPUs, so that step times are measured before numbers are chosen by them.

One job of a kind tries at a time, once its present number was measured: the smallest number first, which can always be
had, then the largest for which GPUs are free, then those between. It ends when so many were measured as are wanted.

Source:
    Optimus, section 3.2: a few short runs with different numbers of workers before a job is scheduled by its speed.
"""

from __future__ import annotations

from scheduler_service.core.view import RunningJob, SchedulingView
from scheduler_service.policies.elasticity.reshaping import elastic_jobs


def explorations(view: SchedulingView, counts_wanted: int) -> dict[str, int]:
    """Return the numbers of GPUs that running jobs try next, by job id.

    Args:
        view: The cluster.
        counts_wanted: Numbers of GPUs to measure a kind of job on; all that it may have, where these are fewer.
    """
    if not view.can_move:
        return {}
    found: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    free = len(view.index.free_gpu_ids)
    for job_id, job in elastic_jobs(view).items():
        kind = job.job.request.key, job.kind[0]
        measured = _measured(view, job.job, job.kind[0])
        if not kind[0] or kind in seen or len(measured) >= min(counts_wanted, len(job.counts)):
            continue
        seen.add(kind)
        left = [count for count in job.counts if count not in measured and count <= job.count + free]
        if job.count in measured and left:
            found[job_id] = left[0] if left[0] < job.count else left[-1]
    return found


def _measured(view: SchedulingView, job: RunningJob, device: str) -> frozenset[int]:
    prediction = view.predictions.job(job.request.key, device)
    return frozenset(prediction.measured_gpus if prediction is not None else ())
