"""Which running jobs try another number of GPUs or of servers, so that step times are measured before one is chosen.

One job of a kind tries at a time, once its present number was measured: the smallest number first, which can always be
had, then the largest for which GPUs are free, then those between. It ends when so many were measured as are wanted.

Source:
    Optimus, section 3.2: a few short runs with different numbers of workers before a job is scheduled by its speed.
"""

from __future__ import annotations

from scheduler_service.core.cluster_view.replica_groups import server_counts
from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
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
    if prediction is None:
        return frozenset()
    with_servers = frozenset(workers for workers, _ in prediction.measured_tasks)
    return with_servers if job.request.replicas.servers else frozenset(prediction.measured_gpus)


def server_explorations(view: SchedulingView, counts_wanted: int) -> dict[str, int]:
    """Return the numbers of parameter servers that running jobs try next beside their present GPUs, by job id.

    The least that is left first, then the largest, then those between: the ends tell most of a curve.

    Args:
        view: The cluster.
        counts_wanted: Numbers of servers to measure a kind of job with; all that it may have, where these are fewer.
    """
    if not view.can_move:
        return {}
    found: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    for job_id, job in elastic_jobs(view, lambda request: len(server_counts(request)) > 1).items():
        allowed, kind = server_counts(job.job.request), (job.job.request.key, job.kind[0])
        if not kind[0] or kind in seen:
            continue
        measured = _measured_servers(view, job.job, kind[1])
        left = [count for count in allowed if count not in measured]
        if not left or len(measured) >= min(counts_wanted, len(allowed)):
            continue
        seen.add(kind)
        if job.job.request.replicas.servers in measured:
            found[job_id] = next((end for end in (allowed[0], allowed[-1]) if end in left), left[len(left) // 2])
    return found


def settled_explorations(view: SchedulingView) -> frozenset[str]:
    """Return the running jobs that were measured with the servers that they have only for that, by id."""
    return frozenset(
        job_id
        for job_id, job in view.running.items()
        if job.is_trying_servers
        and (entry := view.gpus.get(job.assignments[0].gpu_id)) is not None
        and job.request.replicas.servers in _measured_servers(view, job, entry.gpu.device)
    )


def _measured_servers(view: SchedulingView, job: RunningJob, device: str) -> frozenset[int]:
    """Return the numbers of servers with which jobs of this kind were measured on as many GPUs."""
    prediction = view.predictions.job(job.request.key, device)
    tasks = prediction.measured_tasks if prediction is not None else ()
    return frozenset(servers for workers, servers in tasks if workers == len(job.assignments))
