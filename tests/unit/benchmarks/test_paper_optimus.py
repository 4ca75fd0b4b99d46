"""Optimus' workload: what is drawn, and a run of it."""

from __future__ import annotations

import pytest

from benchmarks.papers import optimus
from cotenant_simulator.truth.kinds import EVERY_DEVICE


def test_modes_and_arrivals_leave_lengths_as_they_were() -> None:
    drawn, poisson = optimus.draw_workload(1), optimus.draw_workload(1, arrivals="poisson")
    assert [one.request for one in drawn.jobs] == [one.request for one in poisson.jobs]
    assert [one.submitted_at_ms for one in drawn.jobs] != [one.submitted_at_ms for one in poisson.jobs]


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_one_worker_needs_between_one_and_twelve_hours(mode: str) -> None:
    trace = optimus.draw_workload(2, mode=mode)
    for job in trace.jobs:
        kind = trace.truth.kinds[job.request.key, EVERY_DEVICE]
        hours = kind.step_ms(gpus=1) * job.request.steps_total / optimus.HOUR_MS
        assert 0.99 <= hours <= 12.01
        assert kind.step_ms(gpus=4) < kind.step_ms(gpus=1)


@pytest.mark.endurance
def test_every_job_ends_and_changes_cost_time() -> None:
    outcome = optimus.run(optimus.draw_workload(0), "optimus", seed=0)
    assert 0 < outcome.jct_h < outcome.makespan_h
    assert 0 < outcome.overhead_percent < 20


def test_what_the_paper_prints_is_found_for_every_figure() -> None:
    assert optimus._value("Fig. 11", "jct") == 2.39
    assert optimus._value("Fig. 17", "makespan_reduction") == 31
    assert list(optimus._order("Fig. 15")) == ["optimus", "drf"]


def test_with_a_network_the_true_steps_are_those_of_the_nodes_and_the_predicted_ones_of_remote_tasks() -> None:
    trace = optimus.draw_networked(0)
    kind = trace.truth.kinds[trace.jobs[0].request.key, EVERY_DEVICE]
    assert kind.placed_step_ms((3,)) < kind.placed_step_ms((1, 1, 1)) <= kind.step_ms(gpus=3)
    assert optimus.run(trace, "optimus", seed=0).jct_h > 0
