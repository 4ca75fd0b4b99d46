"""Numbers of parameter servers in decisions: what is launched with how many, and what the host keeps for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from scheduler_service.core import commands
from scheduler_service.core.cluster_view.replica_groups import host_share, spread_servers, with_servers
from scheduler_service.core.codec import decode, encode
from scheduler_service.core.decisions import Reshape
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.replica_terms import ReplicaTerms
from scheduler_service.core.lifecycle.preparation import can_prepare
from scheduler_service.core.records import PREPARED_STARTS, Reason, TaskDemand
from tests.support.scheduling import job
from tests.unit.core.test_moves import Moving, parts

DEMAND = TaskDemand(cpu_cores=2.0, host_memory_bytes=10)


def served(allowed: tuple[int, ...] = (1, 2, 3), **changes: Any) -> dict[str, Any]:
    terms = ReplicaTerms(servers=1, allowed_servers=allowed)
    return {"server_demand": DEMAND, "cpu_cores": 4.0, "host_memory_bytes": 30, "replicas": terms, **changes}


def more_servers(count: int | None, *gpu_ids: str) -> Reshape:
    whole = {"assignments": parts(*gpu_ids), "micro_batch_size": 2, "servers": count}
    return Reshape(job_id="j0", reason=Reason(code="CANDIDATE"), **whole)  # type: ignore[arg-type]


def launches(found: list[commands.Command]) -> list[commands.LaunchJob]:
    return [one for one in found if isinstance(one, commands.LaunchJob)]


def test_a_request_grows_and_shrinks_with_its_servers() -> None:
    request = job(**served())
    grown = with_servers(request, 3)
    assert (grown.cpu_cores, grown.host_memory_bytes, grown.replicas.servers) == (8.0, 50, 3)
    assert with_servers(grown, 1) == request
    assert with_servers(request, None) is request


def test_a_job_goes_on_with_another_number_of_servers_on_the_same_gpus() -> None:
    moving = Moving(**served())
    gpu_ids = moving.job.gpu_ids
    moving.wish(more_servers(2, *gpu_ids))
    [order] = launches(moving.stopped())
    assert (order.servers, moving.job.request.cpu_cores, moving.job.gpu_ids) == (2, 6.0, gpu_ids)
    assert (moving.job.counts.reshapes, moving.job.counts.migrations) == (1, 0)
    assert decode(JobRecord, encode(JobRecord, moving.job)) == moving.job


@pytest.mark.parametrize(
    ("servers", "code"), [(4, "SERVERS_NOT_ALLOWED"), (1, "NOTHING_TO_MOVE"), (None, "NOTHING_TO_MOVE")]
)
def test_a_number_that_the_job_does_not_allow_or_has_is_refused(servers: int | None, code: str) -> None:
    moving = Moving(**served())
    moving.wish(more_servers(servers, *moving.job.gpu_ids))
    assert moving.rejected == [code]


def test_a_job_with_servers_is_moved_without_an_attempt_that_is_prepared() -> None:
    """Its servers run a program of their own, which would begin at once."""
    moving = Moving(**served())
    record = moving.job
    able = replace(moving.engine.state.nodes["n0"], enforcements=(PREPARED_STARTS,))
    moving.engine.state.put_node(able)
    alone = record.changed(request=replace(record.request, replicas=ReplicaTerms()))
    assert can_prepare(moving.engine.state, alone, record.assignments)
    assert not can_prepare(moving.engine.state, record, record.assignments)


def test_a_job_without_servers_gets_none() -> None:
    moving = Moving()
    moving.wish(more_servers(1, *moving.job.gpu_ids))
    assert moving.rejected == ["SERVERS_NOT_ALLOWED"]


@pytest.mark.parametrize(
    ("ranks", "servers", "counts"),
    [
        ((1, 1), 1, (0, 1)), ((1, 1), 2, (1, 1)), ((2, 2), 3, (1, 2)), ((3, 1), 4, (3, 1)), ((3, 1), 2, (1, 1)),
        ((2, 2, 2), 1, (0, 0, 1)), ((4, 2, 1), 5, (3, 1, 1)), ((5,), 3, (3,)), ((1, 1), 0, (0, 0)), ((0, 2), 3, (0, 3)),
    ],
)  # fmt: skip
def test_servers_are_on_the_nodes_of_the_ranks_in_proportion(
    ranks: tuple[int, ...], servers: int, counts: tuple[int, ...]
) -> None:
    found = spread_servers(ranks, servers)
    assert tuple(map(len, found)) == counts
    assert [number for here in found for number in here] == list(range(servers))


def test_each_host_keeps_room_for_whole_servers() -> None:
    """Of three servers two may be on either of two nodes; a node that has all has no more than all."""
    request = with_servers(job(**served(gpus=2)), 3)
    assert [host_share(request, gpus_here, 2).cpu_cores for gpus_here in (1, 2)] == [1.0 + 2 * 2.0, 8.0]
    assert [host_share(request, gpus_here, 2).host_memory_bytes for gpus_here in (1, 2)] == [10 + 2 * 10, 50]
    # Nobody keeps anything for servers that state nothing.
    assert host_share(job(cpu_cores=4.0, gpus=2), 1, 2).cpu_cores == 2.0


@pytest.mark.parametrize("ranks", list(product(range(1, 6), repeat=3)))
def test_no_node_gets_more_servers_than_its_proportion_rounded_up(ranks: tuple[int, ...]) -> None:
    for servers in range(9):
        found = spread_servers(ranks, servers)
        assert all(len(here) <= -(-servers * own // sum(ranks)) for here, own in zip(found, ranks, strict=True))
