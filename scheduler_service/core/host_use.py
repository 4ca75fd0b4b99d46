"""What jobs occupy of one node's host, in proportion to their GPUs there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import Assignment
from scheduler_service.core.view import HostUse


def host_use_of(jobs: Iterable[JobRecord], gpu_ids: Collection[str]) -> HostUse:
    """Return what these jobs occupy beside these GPUs; one that moves keeps the larger of its two parts."""
    cpu_cores, host_memory_bytes = 0.0, 0
    for job in jobs:
        if not job.request.cpu_cores and not job.request.host_memory_bytes:
            continue
        parts = [_host_part(job, job.assignments, gpu_ids)]
        if job.target is not None:
            parts.append(_host_part(job, job.target.assignments, gpu_ids))
        cpu_cores += max(part.cpu_cores for part in parts)
        host_memory_bytes += max(part.host_memory_bytes for part in parts)
    return HostUse(cpu_cores=cpu_cores, host_memory_bytes=host_memory_bytes)


def _host_part(job: JobRecord, assignments: Sequence[Assignment], gpu_ids: Collection[str]) -> HostUse:
    here = sum(part.gpu_id in gpu_ids for part in assignments)
    return HostUse(
        cpu_cores=job.request.cpu_cores * here / len(assignments),
        host_memory_bytes=job.request.host_memory_bytes * here // len(assignments),
    )
