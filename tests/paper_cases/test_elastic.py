"""Reshaping by hand: Algorithms 1 and 2 of the SideCar paper, with costs of 0 unless they matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Reshape, Start, unfolded
from scheduler_service.policies.elastic import Elastic
from tests.support.elastic import elastic_view
from tests.support.engine_play import Play
from tests.support.scheduling import prediction

FREE = Elastic(reshape_cost_ms=0, restart_cost_ms=0, start_cost_ms=0)
# Table IV's job on a P100: 0.25 s on one GPU, 0.19 s on two.
TABLE_IV = {1: 250.0, 2: 190.0}


def reported(policy: Elastic, seen: SchedulingView) -> list[tuple[str, str, int]]:
    return [(type(one).__name__.lower(), one.job_id, _gpus(one)) for one in unfolded(policy.decide(seen))]


def _gpus(decision: Decision) -> int:
    return len(decision.assignments) if isinstance(decision, Start | Reshape) else 0


def test_algorithm_1_line_15_with_idle_gpus_the_number_that_ends_soonest_is_taken() -> None:
    assert reported(FREE, elastic_view(gpus=2, held={}, waiting={"new": TABLE_IV})) == [("start", "new", 2)]
    slower = {1: 100.0, 2: 120.0}
    assert reported(FREE, elastic_view(gpus=2, held={}, waiting={"new": slower})) == [("start", "new", 1)]


def test_algorithm_1_line_22_missing_gpus_come_from_the_running_job_that_suffers_least() -> None:
    """Both have two GPUs; going down to one costs `a` 300 s and `b` 60 s."""
    held = {"a": ({1: 600.0, 2: 300.0}, (0, 1)), "b": ({1: 250.0, 2: 190.0}, (2, 3))}
    seen = elastic_view(gpus=4, held=held, waiting={"new": {1: 100.0}})
    assert reported(FREE, seen) == [("reshape", "b", 1), ("hold", "new", 0)]
    (reshape, hold) = unfolded(FREE.decide(seen))
    assert hold.reason.code == "RESHAPES_OTHER"
    assert isinstance(reshape, Reshape)
    assert reshape.assignments[0].gpu_id == "n0.2"


def test_a_tie_in_the_makespan_is_broken_by_the_sum_of_ends() -> None:
    """A third job of 900 s ends last whatever is done, so the listing could not distinguish the plans."""
    held = {
        "third": ({1: 900.0}, (0,)),
        "a": ({1: 400.0, 2: 300.0}, (1, 2)),
        "b": ({1: 320.0, 2: 300.0}, (3, 4)),
    }
    seen = elastic_view(gpus=5, held=held, waiting={"new": {1: 100.0}})
    assert reported(FREE, seen) == [("reshape", "b", 1), ("hold", "new", 0)]


def test_valid_removals_that_the_listings_range_misses_are_found() -> None:
    """From 4 to 3 GPUs removes one, which is less than the job's smallest number, two (line 9)."""
    held = {"a": ({2: 300.0, 3: 200.0, 4: 150.0}, (0, 1, 2, 3))}
    assert reported(FREE, elastic_view(gpus=4, held=held, waiting={"new": {1: 100.0}}))[0] == ("reshape", "a", 3)


def test_gpus_come_from_one_running_job_only() -> None:
    held = {"a": ({1: 300.0, 2: 200.0}, (0, 1)), "b": ({1: 300.0, 2: 200.0}, (2, 3))}
    seen = elastic_view(gpus=4, held=held, waiting={"wide": {2: 100.0}, "later": {1: 1.0}})
    assert reported(FREE, seen) == [("hold", "wide", 0), ("hold", "later", 0)]


def test_algorithm_2_idle_gpus_go_to_the_job_that_ends_last() -> None:
    held = {"long": ({1: 900.0, 2: 500.0}, (0,)), "short": ({1: 300.0, 2: 100.0}, (1,))}
    assert reported(FREE, elastic_view(gpus=3, held=held, waiting={})) == [("reshape", "long", 2)]


def test_no_job_grows_for_nothing_and_the_restart_counts() -> None:
    held = {"job": ({1: 100.0, 2: 95.0}, (0,))}
    for cost_ms, grown in ((4_999, [("reshape", "job", 2)]), (5_000, [])):
        policy = Elastic(reshape_cost_ms=cost_ms, restart_cost_ms=0, start_cost_ms=0)
        assert reported(policy, elastic_view(gpus=2, held=held, waiting={})) == grown


def test_while_a_job_waits_no_job_grows() -> None:
    held = {"job": ({1: 900.0, 2: 100.0}, (0,))}
    seen = elastic_view(gpus=2, held=held, waiting={"wide": {2: 100.0}})
    assert reported(FREE, seen) == [("hold", "wide", 0)]


def test_the_engine_shrinks_the_running_job_and_starts_the_new_one_when_it_has_stopped() -> None:
    play = Play("elastic", gpus=2)
    profile = prediction("key", step_ms={(1, 2): 100_000.0, (2, 1): 90_000.0})
    shape: dict[str, Any] = {
        "key": "key",
        "graph": "g",
        "global_batch_size": 2,
        "allowed_gpus": (1, 2),
        "steps_total": 1_000,
    }
    play.submit("old", **shape)
    play.tell(events.PredictionArrived, prediction=profile)
    play.tell(events.PairPredictionsFailed, device="standin", keys=("key",), code="DOWN")
    assert len(play.engine.state.jobs["old"].gpu_ids) == 2
    play.report(events.JobStarted, "old")
    found = play.submit("new", **shape)
    assert [type(one) for one in found] == [commands.RequestPairPredictions]
    found = play.tell(events.PairPredictionsFailed, device="standin", keys=("key",), code="DOWN")
    assert [type(one) for one in found] == [commands.StopJob]
    found = play.report(events.JobStopped, "old", exit_class="checkpointed", steps_done=7, checkpoint_step=7)
    assert [(one.job_id, len(one.assignments)) for one in found if isinstance(one, commands.LaunchJob)] == [
        ("old", 1),
        ("new", 1),
    ]
    assert play.engine.state.jobs["old"].counts.reshapes == 1


def test_where_jobs_cannot_be_moved_no_job_makes_room_or_grows() -> None:
    """A promise of room that no move can make would hold the new job for ever."""
    held = {"old": ({1: 900.0, 2: 500.0}, (0, 1))}
    crowded = replace(elastic_view(gpus=2, held=held, waiting={"new": {1: 100.0}}), can_move=False)
    (hold,) = unfolded(FREE.decide(crowded))
    assert hold.reason.code == "NO_FREE_GPU"
    idle = {"old": ({1: 900.0, 2: 500.0}, (0,))}
    assert reported(FREE, replace(elastic_view(gpus=2, held=idle, waiting={}), can_move=False)) == []


def test_of_the_free_gpus_and_those_of_others_only_the_free_ones_count_where_no_job_moves() -> None:
    held = {"old": ({1: 900.0, 2: 500.0}, (0, 1))}
    seen = replace(elastic_view(gpus=3, held=held, waiting={"new": {1: 100.0, 2: 60.0}}), can_move=False)
    assert reported(FREE, seen) == [("start", "new", 1)]
