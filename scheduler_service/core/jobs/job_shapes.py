"""What makes two jobs alike."""

from __future__ import annotations

from scheduler_service.core.records import JobRequest


def shape_of(request: JobRequest) -> object:
    """Return what a placement depends on: of two equal jobs the second fails where the first did."""
    return (
        request.key,
        request.gpus,
        request.global_batch_size,
        request.share,
        request.max_slowdown_ratio,
        request.cpu_cores,
        request.host_memory_bytes,
        request.memory_request_bytes,
        request.memory_floor_bytes,
        request.no_trial,
        request.releases_memory,
        request.takes_whole_batch,
        request.worker_demand,
        request.server_demand,
        request.replicas.servers,
    )
