"""Reports that would tell the engine what it knows are not simulated; all others are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cotenant_simulator.run.known_speeds import is_speed_known
from cotenant_simulator.truth.trace import TraceJob
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


def test_a_second_report_is_told_until_a_thousand_steps_of_such_a_job_were_measured_alone() -> None:
    slow = [trace_job(name, seconds=60, key="slow") for name in ("slow-1", "slow-2")]
    told = reports_of(quick_job("first"), quick_job("second"), quick_job("third"), *slow)
    assert told == {"first": 2, "second": 1, "third": 1, "slow-1": 2, "slow-2": 2}


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
