"""Optimus by hand: Algorithm 1, Fig. 10, Algorithm 2 with Table 3 of the Optimus paper."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.optimus_parameters import assign_as_mxnet, resnet50_blocks
from cotenant.parameter_assignment import assign_parameters
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Reshape, Start, unfolded
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Reason, TaskDemand
from scheduler_service.policies.elasticity.optimus_allocation import Demands, Floats, Integers, allocate_tasks
from scheduler_service.policies.elasticity.optimus_placement import TaskGroup, even_shares, place_evenly
from scheduler_service.policies.optimus import Optimus
from tests.support.scheduling import job, node, pending, prediction, running, store, view

HOUR_MS = 3_600_000


def synchronous(theta: tuple[float, ...], batch: float, workers: Integers, servers: Integers) -> Floats:
    """Eq. 4, time of a step."""
    w, p = workers.astype(float), servers.astype(float)
    return np.asarray(theta[0] * batch / w + theta[1] + theta[2] * w / p + theta[3] * w + theta[4] * p)


def demands(jobs: int, capacity: float, counts: tuple[int, ...] = tuple(range(1, 21))) -> Demands:
    """Jobs whose workers and servers take one unit of one resource each."""
    return Demands(
        capacity=np.array([capacity]),
        available=np.array([capacity]),
        worker=np.ones((jobs, 1)),
        server=np.ones((jobs, 1)),
        worker_counts=np.array([counts] * jobs),
        has_servers=np.ones(jobs, dtype=np.bool_),
    )


def test_one_job_alone_gets_the_best_split_of_twenty_containers() -> None:
    """Table 2 (synchronous) with a large batch: no other split of the 20 tasks of Fig. 2 is faster."""
    theta, batch = (1.02, 2.78, 4.92, 0.0, 0.02), 128.0

    def remaining_time_of(jobs: Integers, workers: Integers, servers: Integers) -> Floats:
        del jobs
        return synchronous(theta, batch, workers, servers)

    counts = allocate_tasks(demands(1, 20.0), remaining_time_of)
    workers, servers = int(counts.workers[0]), int(counts.servers[0])
    assert workers + servers == 20
    splits = np.arange(1, 20)
    assert workers == int(splits[synchronous(theta, batch, splits, 20 - splits).argmin()])


def test_tasks_go_to_the_larger_gain_and_stop_where_no_job_gains() -> None:
    """Job 0 saves 6, 2, 1 s by further workers and job 1 saves 4, 3 s; a server saves neither anything."""
    remaining_times = np.array([[0, 10, 4, 2, 1, 1], [0, 9, 5, 2, 2, 2]], dtype=float)

    def remaining_time_of(jobs: Integers, workers: Integers, servers: Integers) -> Floats:
        del servers
        return np.asarray(remaining_times[jobs, np.minimum(workers, 5)])

    for capacity, expected in (
        (4, [1, 1]),
        (5, [2, 1]),
        (6, [2, 2]),
        (7, [2, 3]),
        (8, [3, 3]),
        (9, [4, 3]),
        (50, [4, 3]),
    ):
        counts = allocate_tasks(demands(2, float(capacity)), remaining_time_of)
        assert (counts.workers.tolist(), counts.servers.tolist()) == (expected, [1, 1])


def test_first_tasks_go_by_order_and_a_job_that_does_not_fit_lets_others_pass() -> None:
    given = demands(3, 5.0)
    wide = Demands(
        capacity=given.capacity,
        available=given.available,
        worker=np.array([[1.0], [9.0], [1.0]]),
        server=given.server,
        worker_counts=given.worker_counts,
        has_servers=given.has_servers,
    )
    counts = allocate_tasks(wide, lambda jobs, workers, servers: np.ones(len(jobs)))
    assert (counts.workers.tolist(), counts.servers.tolist()) == ([1, 0, 1], [1, 0, 1])


def test_figure_10_two_servers_and_four_workers_lie_on_two_nodes_in_equal_parts() -> None:
    """Three nodes with room for three tasks each; placement (c): one server and two workers on each of two nodes."""
    group = TaskGroup(workers=4, servers=2, worker_demand=(1.0,), server_demand=(1.0,))
    (placed,) = place_evenly([(3.0,), (3.0,), (3.0,)], [group])
    assert [(part.workers, part.servers) for part in placed] == [(2, 1), (2, 1)]


def test_counts_that_do_not_divide_differ_by_one_and_the_nodes_stay_balanced() -> None:
    assert even_shares(3, 3, 2) == [(2, 1), (1, 2)]
    assert even_shares(7, 2, 3) == [(3, 0), (2, 1), (2, 1)]


def test_a_job_that_fits_nowhere_waits_and_the_next_is_placed() -> None:
    """The listing ends at the first misfit; its text goes on."""
    large = TaskGroup(workers=5, servers=0, worker_demand=(1.0,), server_demand=(0.0,))
    small = TaskGroup(workers=1, servers=1, worker_demand=(1.0,), server_demand=(1.0,))
    found = place_evenly([(2.0,), (2.0,)], [large, small, small, small])
    assert [len(placed) for placed in found] == [0, 1, 1, 0]


def test_table_3_resnet50_on_ten_servers() -> None:
    """25 million parameters in 157 blocks: 0.10 million apart, one request apart, as many requests as blocks."""
    blocks = resnet50_blocks()
    assert (len(blocks), round(sum(blocks.values()) / 1e6)) == (157, 26)
    found = assign_parameters(blocks, 10)
    assert round((max(found.parameters) - min(found.parameters)) / 1e6, 2) == 0.10
    assert max(found.requests) - min(found.requests) == 1
    assert sum(found.requests) == 157


def test_table_3_mxnet_slices_the_ten_largest_blocks_over_all_servers() -> None:
    """147 whole blocks and 10 in ten slices are the 247 requests that the paper counts; nothing is lost."""
    blocks = resnet50_blocks()
    found = assign_as_mxnet(blocks, 10, Random(0))
    assert sum(found.requests) == 247
    assert sum(found.parameters) == sum(blocks.values())
    assert max(found.parameters) - min(found.parameters) > 1_000_000


def test_a_large_block_is_sliced_and_every_slice_has_its_place_and_size() -> None:
    found = assign_parameters({"huge": 90, "small": 10}, 4)
    assert sorted(one.parameters for one in found.slices if one.block == "huge") == [15, 25, 25, 25]
    assert (found.parameters, sum(found.requests)) == ((25, 25, 25, 25), 5)
    with pytest.raises(ValueError, match="at least one server"):
        assign_parameters({"a": 1}, 0)


STEPS = {1: 100.0, 2: 60.0, 3: 50.0, 4: 30.0}
"""Step time by GPUs: the second saves most, then the step to four."""


def elastic(name: str, steps: int, counts: tuple[int, ...] = (1, 2, 4), **changes: Any) -> Any:
    return job(name, key="key", gpus=1, allowed_gpus=counts, global_batch_size=12, steps_total=steps, **changes)


KNOWN = store([prediction("key", step_ms={(count, -(-12 // count)): ms for count, ms in STEPS.items()})])


def decided(now: SchedulingView) -> list[Decision]:
    decisions = list(unfolded(Optimus().decide(now)))
    assert check_plan(now, {one.request.job_id: one for one in now.pending}, decisions).rejections == ()
    return decisions


def test_waiting_jobs_start_with_the_numbers_of_algorithm_1() -> None:
    """Six GPUs: both get one; 'long' saves 40 s x 1,000 by its second, 15 s each by two more, 'short' 40 s x 100."""
    now = view(
        nodes=[node("n0", 4), node("n1", 2)],
        waiting=[pending(elastic("long", 1_000)), pending(elastic("short", 100))],
        predictions=KNOWN,
        nodes_per_job_max=1,
    )
    starts = {one.job_id: len(one.assignments) for one in decided(now) if isinstance(one, Start)}
    assert starts == {"long": 4, "short": 2}


def test_a_running_job_grows_into_free_gpus_once_per_interval_and_shrinks_for_incoming_jobs() -> None:
    def now(since_ms: int, waiting: list[Any]) -> SchedulingView:
        one = running(elastic("old", 1_000), ["n0.0", "n0.1"], started_at_ms=HOUR_MS - since_ms)
        return view(
            now_ms=HOUR_MS,
            nodes=[node("n0", 4)],
            holding=[one],
            waiting=waiting,
            predictions=KNOWN,
            nodes_per_job_max=1,
        )

    (grown,) = decided(now(1_200_000, []))
    assert isinstance(grown, Reshape)
    assert [part.gpu_id for part in grown.assignments] == ["n0.0", "n0.1", "n0.2", "n0.3"]
    assert decided(now(1_199_999, [])) == []
    incoming = [pending(elastic(f"new{place}", 900, (1,)), place) for place in range(3)]
    found = decided(now(1_200_000, incoming))
    assert [(type(one), one.job_id) for one in found] == [
        (Reshape, "old"),
        (Start, "new0"),
        (Start, "new1"),
        (Hold, "new2"),
    ]


def test_servers_are_chosen_reported_and_get_room_on_the_hosts() -> None:
    """(workers, servers): the second server saves more than the second worker; there is CPU for four tasks."""
    tasks = {(1, 1): 100.0, (2, 1): 80.0, (1, 2): 50.0, (2, 2): 30.0, (3, 2): 29.0, (2, 3): 29.0}
    known = store([prediction("ps", task_step_ms=tasks)])
    request = job(
        "ps",
        key="ps",
        allowed_gpus=(1, 2, 3),
        steps_total=10,
        worker_demand=TaskDemand(cpu_cores=2.0, gpus=1),
        server_demand=TaskDemand(cpu_cores=2.0),
    )
    for cores, expected in ((8.0, (2, 2)), (6.0, (1, 2)), (4.0, (1, 1))):
        now = view(nodes=[node("n0", 4, cpu_cores=cores)], waiting=[pending(request)], predictions=known)
        (start,) = decided(now)
        assert isinstance(start, Start)
        assert (len(start.assignments), start.reason.numbers["servers_count"]) == expected


def held_reason(request: Any, **facts: Any) -> Reason:
    (held,) = decided(view(waiting=[pending(request)], predictions=KNOWN, **facts))
    assert isinstance(held, Hold)
    return held.reason


def test_a_gang_whose_gpus_are_free_but_lie_unevenly_gets_that_reason() -> None:
    """Three and one are free, four are needed; two and two would do, and no owner asked for CPU or memory."""
    blocker = running(job("old", key="key"), ["n1.0"])
    gang = elastic("gang", 1_000, (4,))
    reason = held_reason(gang, nodes=[node("n0", 3), node("n1", 2, cpu_cores=8.0)], holding=[blocker])
    assert reason.code == "SPREAD_UNEVEN"
    assert reason.numbers == {"gpus_needed": 4, "gpus_free": 4, "gpus_on_node": 3}
    assert "CPU" not in describe_reason(reason)


def test_gpus_that_a_gang_cannot_use_as_they_lie_go_to_a_job_that_gains_less() -> None:
    """Three and one are free: all four are the gang's by its gain, and it cannot spread evenly over them."""
    blocker = running(job("old", key="key"), ["n1.0"])
    waiting = [pending(elastic("gang", 10, (4,))), pending(elastic("small", 1_000, (1,)), 1)]
    now = view(nodes=[node("n0", 3), node("n1", 2)], holding=[blocker], waiting=waiting, predictions=KNOWN)
    found = {one.job_id: (type(one), one.reason.code) for one in decided(now)}
    assert found == {"gang": (Hold, "SPREAD_UNEVEN"), "small": (Start, "STARTS_ALONE")}


def test_a_gang_that_may_span_two_nodes_learns_how_many_gpus_it_can_have() -> None:
    nodes = [node("n0", 2), node("n1", 1), node("n2", 4)]
    blocker = running(job("old", key="key", gpus=3), ["n2.0", "n2.1", "n2.2"])
    reason = held_reason(elastic("gang", 1_000, (4,)), nodes=nodes, holding=[blocker], nodes_per_job_max=2)
    assert reason == Reason(code="NO_FREE_GPU", numbers={"gpus_needed": 4, "gpus_free": 3})


def test_workers_that_find_no_cpu_learn_what_one_of_them_needs() -> None:
    worker = TaskDemand(cpu_cores=3.0, gpus=1)
    gang = elastic("gang", 1_000, (2,), worker_demand=worker)
    old = running(elastic("old", 1_000, (2,), worker_demand=worker), ["n0.0", "n0.1"], started_at_ms=0)
    reason = held_reason(gang, nodes=[node("n0", 4, cpu_cores=8.0)], holding=[old])
    assert reason.code == "TASKS_DO_NOT_FIT"
    assert (reason.numbers["workers_count"], reason.numbers["cpu_cores"]) == (2, 3.0)


def test_a_job_that_asks_for_cpu_itself_still_hears_of_the_host() -> None:
    gang = elastic("gang", 1_000, (2,), cpu_cores=6.0)
    old = running(elastic("old", 1_000, (2,), cpu_cores=3.0), ["n0.0", "n0.1"])
    reason = held_reason(gang, nodes=[node("n0", 4, cpu_cores=8.0)], holding=[old])
    assert reason == Reason(code="HOST_DOES_NOT_FIT", numbers={"cpu_cores": 6.0, "host_memory_bytes": 0})


def test_a_job_that_asks_for_no_cpu_starts_where_others_took_more_than_there_is() -> None:
    old = running(elastic("old", 1_000, (2,), cpu_cores=6.0), ["n0.0", "n0.1"])
    now = view(
        nodes=[node("n0", 4, cpu_cores=8.0)],
        holding=[old],
        waiting=[pending(elastic("gang", 1_000, (2,)))],
        predictions=KNOWN,
    )
    (start,) = decided(now)
    assert isinstance(start, Start)
