"""Optimus against Algorithm 1 as it is printed (with its slips put right), line by line with a queue."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.policies.elasticity.optimus_allocation import (
    Demands,
    Floats,
    Integers,
    allocate_tasks,
    dominant_shares,
)
from scheduler_service.policies.elasticity.optimus_placement import TaskGroup, even_shares, place_evenly
from scheduler_service.policies.optimus import Optimus

WORKERS_MAX, SERVERS_MAX, RESOURCES = 4, 4, 2


def rest_table(draw: st.DrawFn, jobs: int) -> Floats:
    """Times by job, workers and servers; whole numbers, so that ties are frequent."""
    shape = (jobs, WORKERS_MAX + 1, SERVERS_MAX + 2)
    values = draw(st.lists(st.integers(1, 12), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    table = np.array(values, dtype=float).reshape(shape)
    table[:, :, SERVERS_MAX + 1] = inf
    return table


@st.composite
def instances(draw: st.DrawFn) -> tuple[Demands, Floats]:
    jobs = draw(st.integers(1, 5))
    amounts = st.lists(st.integers(0, 3), min_size=RESOURCES, max_size=RESOURCES)
    counts = st.sampled_from([(1, 2, 3, 4), (1, 2, 4, 0), (2, 4, 0, 0), (3, 0, 0, 0)])
    capacity = np.array(draw(st.lists(st.integers(1, 25), min_size=RESOURCES, max_size=RESOURCES)), dtype=float)
    demands = Demands(
        capacity=capacity,
        available=capacity - draw(st.integers(0, 1)),
        worker=np.array([draw(amounts) for _ in range(jobs)], dtype=float),
        server=np.array([draw(amounts) for _ in range(jobs)], dtype=float),
        worker_counts=np.array([draw(counts) for _ in range(jobs)]),
        has_servers=np.array([draw(st.booleans()) for _ in range(jobs)]),
    )
    return demands, rest_table(draw, jobs)


def by_queue(demands: Demands, table: Floats) -> tuple[list[int], list[int]]:
    """Algorithm 1: first tasks in order, then always the largest gain; a job that does not fit leaves the queue."""
    left = demands.available.copy()
    workers, servers, queue = [], [], set()
    for job, counts in enumerate(demands.worker_counts):
        has = bool(demands.has_servers[job])
        need = demands.worker[job] * counts[0] + demands.server[job] * has
        fits = bool((need <= left).all())
        left = left - need * fits
        workers.append(int(counts[0]) * fits)
        servers.append(int(has and fits))
        queue |= {job} if fits else set()

    def step(job: int) -> tuple[float, int, int]:
        w, p = workers[job], servers[job]
        more = next((int(count) for count in demands.worker_counts[job] if count > w), 0)
        by_worker = by_server = 0.0
        if more:
            share = (more - w) * dominant_shares(demands.worker[job], demands.capacity)
            by_worker = (table[job, w, p] - table[job, more, p]) / share
        if demands.has_servers[job] and table[job, w, p + 1] < inf:
            by_server = (table[job, w, p] - table[job, w, p + 1]) / dominant_shares(
                demands.server[job], demands.capacity
            )
        return (by_server, w, p + 1) if by_server > by_worker else (by_worker, more, p)

    while queue:
        job = min(queue, key=lambda one: (-step(one)[0], one))
        gain, w, p = step(job)
        if gain <= 0:
            break
        need = demands.worker[job] * (w - workers[job]) + demands.server[job] * (p - servers[job])
        if (need <= left).all():
            left, workers[job], servers[job] = left - need, w, p
        else:
            queue.remove(job)
    return workers, servers


@given(instance=instances())
def test_all_jobs_at_once_get_what_the_queue_gives_them_one_by_one(instance: tuple[Demands, Floats]) -> None:
    demands, table = instance

    def remaining_time_of(jobs: Integers, workers: Integers, servers: Integers) -> Floats:
        return np.asarray(table[jobs, workers, servers])

    counts = allocate_tasks(demands, remaining_time_of)
    assert (counts.workers.tolist(), counts.servers.tolist()) == by_queue(demands, table)


@settings(deadline=None)
@given(
    free=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    workers=st.integers(1, 6),
    servers=st.integers(0, 4),
)
def test_a_job_is_placed_on_the_fewest_of_the_emptiest_nodes_that_hold_an_even_spread(
    free: list[int], workers: int, servers: int
) -> None:
    """Against trying every number of nodes with every assignment of the shares to them."""
    group = TaskGroup(workers=workers, servers=servers, worker_demand=(1.0,), server_demand=(1.0,))
    (placed,) = place_evenly([(float(amount),) for amount in free], [group])
    order = sorted(range(len(free)), key=lambda node: (-free[node], node))
    fewest = next(
        (
            count
            for count in range(1, min(len(free), workers + servers) + 1)
            if all(
                free[node] >= sum(share)
                for node, share in zip(order, even_shares(workers, servers, count), strict=False)
            )
        ),
        0,
    )
    assert len(placed) == fewest
    if placed:
        assert sum(part.workers for part in placed) == workers
        assert sum(part.servers for part in placed) == servers
        assert all(free[part.node] >= part.workers + part.servers for part in placed)


def transfer(shares: list[tuple[int, int]], workers: int, servers: int) -> float:
    """The paper's appendix: what the busiest task moves over the network in a step, model and bandwidth being 1."""
    here = [(w, p) for w, p in shares if w or p]
    by_server = max((1 / servers * (workers - w) for w, p in here if p), default=0.0)
    by_worker = max((1 / servers * (servers - p) for w, p in here if w), default=0.0)
    return max(by_server, by_worker)


@settings(deadline=None, max_examples=40)
@given(each_workers=st.integers(1, 3), each_servers=st.integers(1, 2), nodes=st.integers(1, 3))
def test_no_spread_over_as_many_nodes_moves_less_data_than_the_even_one(
    each_workers: int, each_servers: int, nodes: int
) -> None:
    """Theorem 1 where its conditions hold: equal nodes, counts that divide, all nodes needed."""
    workers, servers = each_workers * nodes, each_servers * nodes
    size = each_workers + each_servers
    even = transfer(even_shares(workers, servers, nodes), workers, servers)
    options = [(w, p) for w, p in product(range(size + 1), repeat=2) if w + p <= size]
    spreads = (
        list(spread)
        for spread in product(options, repeat=nodes)
        if sum(w for w, _ in spread) == workers and sum(p for _, p in spread) == servers
    )
    assert even <= min(transfer(spread, workers, servers) for spread in spreads) + 1e-9


def test_the_policy_itself_is_named_here() -> None:
    assert Optimus().interval_ms == 1_200_000
