"""Tetris as a baseline of Optimus (section 6.1) by hand: the shortest first, packed so that least is left over."""

from __future__ import annotations

from typing import Any

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.records import TaskDemand
from scheduler_service.policies.tetris import Tetris
from tests.support.scheduling import GIB, job, node, pending, prediction, running, store, view

KNOWN = store([prediction("key", step_ms={(gpus, 1): 1_000.0 for gpus in (1, 2, 4)})])


def steps(name: str, count: int, gpus: int = 1, **changes: Any) -> Any:
    return job(name, key="key", gpus=gpus, global_batch_size=gpus, steps_total=count, **changes)


def places(**facts: Any) -> dict[str, list[str]]:
    decisions = unfolded(Tetris().decide(view(predictions=KNOWN, **facts)))
    return {one.job_id: [part.gpu_id for part in one.assignments] for one in decisions if isinstance(one, Start)}


def test_section_6_1_the_shortest_remaining_time_is_preferred() -> None:
    waiting = [pending(steps("long", 90), 0), pending(steps("short", 10), 1)]
    assert places(nodes=[node()], waiting=waiting) == {"short": ["n0.0"]}


def test_section_6_1_a_job_goes_where_least_is_left_over() -> None:
    """Both nodes have one free GPU; on the second one 1 of 8 cores would be left, on the first one 5 of 8."""
    nodes = [node(name, 2, cpu_cores=8.0, host_memory_bytes=8 * GIB) for name in ("n0", "n1")]
    holding = [running(steps("a", 9, cpu_cores=1.0), ["n0.0"]), running(steps("b", 9, cpu_cores=5.0), ["n1.0"])]
    waiting = [pending(steps("new", 9, cpu_cores=2.0))]
    assert places(nodes=nodes, holding=holding, waiting=waiting) == {"new": ["n1.1"]}


def test_section_6_1_one_server_per_worker_needs_room_too() -> None:
    nodes = [node(name, 1, cpu_cores=cores) for name, cores in (("n0", 4.0), ("n1", 6.0))]
    demand: dict[str, Any] = {
        "worker_demand": TaskDemand(cpu_cores=3, gpus=1),
        "server_demand": TaskDemand(cpu_cores=2),
    }
    assert places(nodes=nodes, waiting=[pending(steps("new", 9, **demand))]) == {"new": ["n1.0"]}


def test_a_wide_job_that_does_not_fit_lets_a_longer_one_pass() -> None:
    waiting = [pending(steps("wide", 1, gpus=2)), pending(steps("long", 50))]
    holding = [running(steps("r", 9), ["n0.0"])]
    assert places(nodes=[node("n0", 2)], holding=holding, waiting=waiting) == {"long": ["n0.1"]}
