"""Reports that would tell the engine what it knows are not simulated; all others are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cotenant_simulator.run import known_speeds
from cotenant_simulator.run.known_speeds import is_speed_known
from cotenant_simulator.run.records import NodeFailures
from cotenant_simulator.truth.trace import TraceJob
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event, JobProgressed, JobStarted
from tests.support.simulated_runs import kind, run, simulation, trace_job, trace_of

QUICK = kind(step_ms_by_gpus={1: 10.0})
SLOW = kind(step_ms_by_gpus={1: 1_000.0})


def quick_job(name: str, **changes: Any) -> TraceJob:
    """A job that takes a minute alone, in steps of 10 ms: a thousand in each window."""
    return trace_job(name, seconds=6_000, key="quick", **changes)


def reports_of(*jobs: TraceJob, **settings: Any) -> Counter[str]:
    """How often each job reported its progress."""
    told: Counter[str] = Counter()

    def note(event: Event, _: object) -> None:
        if isinstance(event, JobProgressed):
            told[event.job_id] += 1

    run(trace_of(*jobs, kinds={"quick": QUICK, "slow": SLOW}), observe=note, **settings)
    return told


def orders_into(orders: list[tuple[int, object]]) -> Any:
    """An observer that keeps what is launched and stopped, and when."""

    def note(event: Event, commands: Sequence[Command]) -> None:
        orders.extend((event.at_ms, one) for one in commands if isinstance(one, LaunchJob | StopJob))

    return note


def test_a_second_report_is_told_until_a_thousand_steps_of_such_a_job_were_measured_alone() -> None:
    slow = [trace_job(name, seconds=60, key="slow") for name in ("slow-1", "slow-2")]
    told = reports_of(quick_job("first"), quick_job("second"), quick_job("third"), *slow)
    assert told == {"first": 2, "second": 1, "third": 1, "slow-1": 2, "slow-2": 2}


def test_a_policy_that_heeds_no_report_is_told_no_first_one_either_where_the_speed_is_known() -> None:
    jobs = [quick_job("first"), quick_job("second"), quick_job("third")]
    slow = [trace_job(name, seconds=60, key="slow") for name in ("slow-1", "slow-2")]
    told = reports_of(*jobs, *slow, policy="tiresias")
    assert told == {"first": 2, "slow-1": 2, "slow-2": 2}


def test_where_nodes_fail_or_a_policy_heeds_some_report_the_first_one_is_told() -> None:
    jobs = [quick_job("first"), quick_job("second", at_s=1_000)]
    fails = reports_of(*jobs, policy="tiresias", failures=NodeFailures(mean_up_ms=10**12))
    heeds = reports_of(*jobs, policy="pab")
    assert fails["second"] == heeds["second"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_what_tiresias_orders_does_not_depend_on_reports_that_are_left_out(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    generator = random.Random(seed)
    widths = [generator.choice((1, 1, 2, 4)) for _ in range(40)]
    steps = [generator.randrange(500, 100_000) for _ in widths]
    jobs = [
        trace_job(f"j{number:02}", at_s=60 * number, seconds=steps[number], gpus=gpus, key="quick")
        for number, gpus in enumerate(widths)
    ]
    trace = trace_of(*jobs, kinds={"quick": kind(step_ms_by_gpus=dict.fromkeys((1, 2, 4), 10.0))})
    settings: dict[str, Any] = {
        "policy": "tiresias",
        "parameters": {"queue_limit_gpu_ms": 300_000},
        "learns_speeds": seed % 2 == 1,
    }
    ordered, events = list[list[tuple[int, object]]](), list[int]()
    for is_heeded in (False, True):
        orders: list[tuple[int, object]] = []
        made = simulation(trace, cluster="1x4", observe=orders_into(orders), **settings)
        monkeypatch.setattr(known_speeds, "heeds_some_report", lambda _, said=is_heeded: said)
        events.append(made.run().events)
        ordered.append(orders)
    assert ordered[0] == ordered[1]
    assert sum(isinstance(order, StopJob) for _, order in ordered[0]) > 5
    assert events[0] < events[1]


def test_where_reports_are_asked_for_at_an_interval_all_are_told() -> None:
    told = reports_of(quick_job("first"), quick_job("second"), report_interval_ms=10_000)
    assert told["first"] == told["second"] == 5


def test_jobs_that_share_a_gpu_go_on_to_tell_what_that_costs() -> None:
    alone = reports_of(quick_job("first"), quick_job("second"))
    co_located = reports_of(
        quick_job("first"), quick_job("second", at_s=100), quick_job("third", at_s=100), policy="obp"
    )
    assert alone["second"] == 1
    assert min(co_located["second"], co_located["third"]) > 1


@pytest.mark.parametrize(("step_ms", "is_known"), [(10.0, True), (10.2, True), (12.0, False)])
def test_a_job_that_is_slower_where_it_is_than_what_was_measured_tells_so(step_ms: float, *, is_known: bool) -> None:
    found: list[bool] = []

    def note(event: Event, _: object) -> None:
        if isinstance(event, JobStarted) and event.job_id == "second":
            state = made._simulation
            attempt = replace(state.occupancy.attempts["second"], step_ms=step_ms)
            found.append(is_speed_known(attempt, state.occupancy, made.engine.state))

    made = simulation(trace_of(quick_job("first"), quick_job("second"), kinds={"quick": QUICK}), observe=note)
    made.run()
    assert found == [is_known]
