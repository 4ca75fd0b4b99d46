"""DRF as a baseline of Optimus (section 6.1) by hand; the first case is the well-known one of 9 CPUs and 18 GB."""

from __future__ import annotations

from typing import Any

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Reshape, Start, unfolded
from scheduler_service.core.records import JobRequest, TaskDemand
from scheduler_service.policies.drf import DominantResourceFairness
from tests.support.scheduling import GIB, job, node, pending, running, view


def tasks(name: str, *, cpu_cores: float, gib: int, most: int = 8, server: TaskDemand | None = None) -> JobRequest:
    """A job that takes any number of workers up to `most`."""
    return job(
        name,
        global_batch_size=840,
        allowed_gpus=tuple(range(1, most + 1)),
        worker_demand=TaskDemand(cpu_cores=cpu_cores, host_memory_bytes=gib * GIB, gpus=1),
        server_demand=server,
    )


def workers_of(seen: SchedulingView) -> dict[str, int]:
    decisions = unfolded(DominantResourceFairness().decide(seen))
    return {one.job_id: len(one.assignments) for one in decisions if isinstance(one, Start | Reshape)}


def test_the_textbook_case_gives_three_tasks_to_one_user_and_two_to_the_other() -> None:
    """9 CPUs, 18 GB; tasks of <1 CPU, 4 GB> and <3 CPU, 1 GB> (Ghodsi et al., as Optimus cites it)."""
    machine = node("n0", 8, cpu_cores=9.0, host_memory_bytes=18 * GIB)
    waiting = [pending(tasks("a", cpu_cores=1, gib=4)), pending(tasks("b", cpu_cores=3, gib=1))]
    assert workers_of(view(nodes=[machine], waiting=waiting)) == {"a": 3, "b": 2}


def test_section_6_1_as_many_servers_as_workers_take_their_part() -> None:
    server = TaskDemand(cpu_cores=2)
    machine = node("n0", 8, cpu_cores=9.0)
    only = pending(tasks("a", cpu_cores=1, gib=0, server=server))
    assert workers_of(view(nodes=[machine], waiting=[only])) == {"a": 3}


def test_everything_is_given_away_whatever_it_brings() -> None:
    waiting = [pending(tasks("a", cpu_cores=0, gib=0), 0), pending(tasks("b", cpu_cores=0, gib=0), 1)]
    assert workers_of(view(nodes=[node("n0", 7)], waiting=waiting)) == {"a": 4, "b": 3}


def test_a_running_job_gives_gpus_up_for_an_incoming_job_but_only_once_per_interval() -> None:
    old = tasks("old", cpu_cores=0, gib=0)
    facts: dict[str, Any] = {"nodes": [node("n0", 4)], "waiting": [pending(tasks("new", cpu_cores=0, gib=0), 1)]}
    held = running(old, [f"n0.{index}" for index in range(4)])
    assert workers_of(view(holding=[held], now_ms=1_200_000, **facts)) == {"old": 2}
    assert workers_of(view(holding=[held], now_ms=1_199_999, **facts)) == {}


def test_section_6_1_workers_go_to_the_emptiest_node() -> None:
    holding = [running(job("r"), ["n0.0"])]
    seen = view(nodes=[node("n0", 3), node("n1", 3)], holding=holding, waiting=[pending(job("new"))])
    (start,) = DominantResourceFairness().decide(seen)
    assert isinstance(start, Start)
    assert start.assignments[0].gpu_id == "n1.0"
