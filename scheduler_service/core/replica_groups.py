"""Jobs of workers and parameter servers: what a request asks of its host with another number of servers."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.records import JobRequest, TaskDemand


def with_servers(request: JobRequest, servers: int | None) -> JobRequest:
    """Return a request as if it asked for so many parameter servers; None = as many as it asks for.

    What it asks of the host is that of its ranks and servers together, so it grows and shrinks with them.
    """
    if servers is None or servers == request.replicas.servers:
        return request
    more, demand = servers - request.replicas.servers, request.server_demand or TaskDemand()
    return replace(
        request,
        cpu_cores=max(request.cpu_cores + more * demand.cpu_cores, 0.0),
        host_memory_bytes=max(request.host_memory_bytes + more * demand.host_memory_bytes, 0),
        replicas=replace(request.replicas, servers=servers),
    )


def may_have_servers(request: JobRequest, servers: int | None) -> bool:
    """Say whether a job may run with so many parameter servers; None = as many as it asks for."""
    allowed = request.replicas.allowed_servers or (request.replicas.servers,)
    return servers is None or servers in allowed


def server_counts(request: JobRequest) -> tuple[int, ...]:
    """Return the numbers of parameter servers that a job of a running cluster may have, ascending; empty = none."""
    terms = request.replicas
    return terms.allowed_servers or ((terms.servers,) if terms.servers else ())


def has_choice(request: JobRequest) -> bool:
    """Say whether a policy may choose how many GPUs, or parameter servers, a job has."""
    return len(request.allowed_gpus) > 1 or len(request.replicas.allowed_servers) > 1
