"""Jobs of workers and parameter servers: what hosts are asked for with each number of servers, and where these are.

Source:
    Optimus, section 4.2: servers are spread over the nodes of a job as evenly as its workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from scheduler_service.core.cluster_view.view import HostUse
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


def spread_servers(ranks: Sequence[int], servers: int) -> tuple[range, ...]:
    """Return the numbers of the servers on each node, in proportion to its ranks; what is over goes to the last nodes.

    No node gets more than its proportion, rounded up.

    Args:
        ranks: Of each node, in the order of the nodes; at least one in sum.
        servers: Of all nodes.
    """
    world = sum(ranks)
    counts = [servers * here // world for here in ranks]
    left = sorted(range(len(ranks)), key=lambda node: (servers * ranks[node] % world, node), reverse=True)
    for node in left[: servers - sum(counts)]:
        counts[node] += 1
    ends = list(accumulate(counts))
    return tuple(range(end - count, end) for count, end in zip(counts, ends, strict=True))


def whole_servers(request: JobRequest, ranks_here: int, ranks: int) -> TaskDemand:
    """Return what a part of a job needs beyond its proportion of the host, for its servers are whole ones."""
    servers, demand = request.replicas.servers, request.server_demand
    if not servers or demand is None:
        return TaskDemand()
    more = -servers * ranks_here % ranks
    return TaskDemand(
        cpu_cores=more * demand.cpu_cores / ranks, host_memory_bytes=-(-more * demand.host_memory_bytes // ranks)
    )


def host_share(request: JobRequest, gpus_here: int, gpus: int) -> HostUse:
    """Return what the part of a job on one node needs of its host: as its GPUs there, with whole servers."""
    more = whole_servers(request, gpus_here, gpus)
    return HostUse(
        cpu_cores=request.cpu_cores * gpus_here / gpus + more.cpu_cores,
        host_memory_bytes=-(-request.host_memory_bytes * gpus_here // gpus) + more.host_memory_bytes,
    )
