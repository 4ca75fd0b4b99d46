"""What jobs occupy of one node's host, in proportion to their GPUs there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import Assignment, Node
from scheduler_service.core.view import HostUse

NOTHING = HostUse()


def host_use_of(jobs: Iterable[JobRecord], node: Node) -> HostUse:
    """Return what these jobs occupy of a node; one that moves keeps the larger of its two parts."""
    asking = [job for job in jobs if job.request.cpu_cores or job.request.host_memory_bytes]
    if not asking:
        return NOTHING
    gpu_ids = {gpu.gpu_id for gpu in node.gpus}
    cpu_cores, host_memory_bytes = 0.0, 0
    for job in asking:
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
