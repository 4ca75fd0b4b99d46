"""Queues whose answer is known: exactly, by recursion, and on average, by formula."""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import factorial
from statistics import stdev

import pytest

from cotenant_simulator.run.records import RunResult
from cotenant_simulator.truth.trace import Trace
from tests.support.cases import for_each
from tests.support.simulated_runs import drawn, mean, run

SEEDS = 20
STUDENT_T_99 = 2.861
"""Two-sided 99 % quantile with 19 degrees of freedom."""
SERVICE_S = 10.0


def _queue(*, servers: int, load: float, length: str, jobs: int, seed: int) -> Trace:
    arrival = {"kind": "poisson", "mean_s": SERVICE_S / servers / load}
    classes = [{"mean_s": SERVICE_S, "length": length, "step_ms": 1.0}]
    return drawn(seed=seed, jobs=jobs, arrival=arrival, classes=classes)


def _mean_stay_s(result: RunResult, *, warm_up: int) -> float:
    return mean([(job.finished_at_ms - job.submitted_at_ms) / 1_000 for job in result.jobs[warm_up:]])


def _expected_stay_s(*, servers: int, load: float, length: str) -> float:
    """Erlang C for exponential service, Pollaczek-Khinchine for one server."""
    if servers == 1:
        squared_variation = {"exponential": 1.0, "fixed": 0.0, "uniform": 1 / 3}[length]
        return SERVICE_S * (1 + load * (1 + squared_variation) / (2 * (1 - load)))
    offered = servers * load
    all_busy = offered**servers / factorial(servers) / (1 - load)
    waits = all_busy / (sum(offered**n / factorial(n) for n in range(servers)) + all_busy)
    return SERVICE_S * (1 + waits / (servers * (1 - load)))


@for_each("servers", [1, 3, 8])
@for_each("length", ["exponential", "uniform"])
def test_first_in_first_out_is_the_recursion_of_queueing_theory_to_the_millisecond(servers: int, length: str) -> None:
    trace = _queue(servers=servers, load=0.8, length=length, jobs=300, seed=servers)
    free_at_ms = [0] * servers
    heapify(free_at_ms)
    expected = []
    for job in trace.jobs:
        end_ms = max(job.submitted_at_ms, free_at_ms[0]) + job.request.steps_total
        heapreplace(free_at_ms, end_ms)
        expected.append(end_ms)
    assert [job.finished_at_ms for job in run(trace, cluster=f"1x{servers}").jobs] == expected


QUEUES = [(1, "exponential"), (4, "exponential"), (1, "uniform"), (1, "fixed")]


def _check_formula(*, servers: int, load: float, length: str, jobs: int) -> None:
    stays_s = []
    for seed in range(SEEDS):
        trace = _queue(servers=servers, load=load, length=length, jobs=jobs, seed=seed)
        stays_s.append(_mean_stay_s(run(trace, cluster=f"1x{servers}"), warm_up=jobs // 10))
    half_width_s = STUDENT_T_99 * stdev(stays_s) / SEEDS**0.5
    expected_s = _expected_stay_s(servers=servers, load=load, length=length)
    assert half_width_s <= 0.05 * expected_s
    assert abs(mean(stays_s) - expected_s) <= half_width_s


def test_the_mean_stay_with_many_servers_lies_where_erlang_says() -> None:
    _check_formula(servers=4, load=0.5, length="exponential", jobs=500)


@pytest.mark.endurance
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("load", [0.5, 0.7])
@pytest.mark.parametrize(("servers", "length"), QUEUES)
def test_the_mean_stay_lies_where_the_formula_says(servers: int, length: str, load: float) -> None:
    _check_formula(servers=servers, load=load, length=length, jobs=2_500 if load < 0.6 else 9_000)
