"""The termination approach of the SideCar paper (section V-B) by hand, with a restart of 10 s."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Reshape, Start, unfolded
from scheduler_service.policies.termination_elastic import TerminationElastic
from tests.support.elastic import elastic_view

POLICY = TerminationElastic(restart_cost_ms=10_000)


def reported(seen: SchedulingView, policy: TerminationElastic = POLICY) -> list[tuple[str, str, int]]:
    return [(type(one).__name__.lower(), one.job_id, _gpus(one)) for one in unfolded(policy.decide(seen))]


def _gpus(decision: Decision) -> int:
    return len(decision.assignments) if isinstance(decision, Start | Reshape) else 0


def test_an_incoming_job_gets_the_smallest_number_however_much_is_idle() -> None:
    waiting = {"new": {1: 900.0, 2: 500.0, 8: 90.0}}
    assert reported(elastic_view(gpus=8, held={}, waiting=waiting)) == [("start", "new", 1)]


def test_gpus_are_added_one_step_at_a_time() -> None:
    held = {"job": ({1: 900.0, 2: 500.0, 8: 90.0}, (0,))}
    assert reported(elastic_view(gpus=8, held=held, waiting={})) == [("reshape", "job", 2)]


def test_without_idle_gpus_a_job_is_queued_and_no_job_shrinks() -> None:
    held = {"job": ({1: 900.0, 2: 899.0}, (0, 1))}
    assert reported(elastic_view(gpus=2, held=held, waiting={"new": {1: 1.0}})) == [("hold", "new", 0)]


def test_a_step_that_does_not_pay_for_its_restart_is_not_taken() -> None:
    held = {"job": ({1: 100.0, 2: 91.0}, (0,))}
    assert reported(elastic_view(gpus=2, held=held, waiting={})) == []
    assert reported(elastic_view(gpus=2, held=held, waiting={}), TerminationElastic(restart_cost_ms=8_000)) == [
        ("reshape", "job", 2)
    ]


def test_a_job_grows_only_when_it_has_run_for_a_minute() -> None:
    held = {"job": ({1: 900.0, 2: 500.0}, (0,))}
    assert reported(elastic_view(gpus=2, held=held, waiting={}, now_ms=59_999)) == []
    assert reported(elastic_view(gpus=2, held=held, waiting={}, now_ms=60_000)) == [("reshape", "job", 2)]


def test_where_jobs_cannot_be_moved_no_job_grows() -> None:
    held = {"job": ({1: 900.0, 2: 500.0}, (0,))}
    assert reported(replace(elastic_view(gpus=2, held=held, waiting={}), can_move=False)) == []
