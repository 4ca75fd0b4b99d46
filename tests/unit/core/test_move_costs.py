"""What a move costs a job: measured from its stop to its steps after it, for it and for others of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Share
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, all_pairs, job, memory, prediction
from tests.unit.core.test_moves import Moving, migrate
from tests.unit.core.test_preparation import Preparing

STEPS, SOLO_MS = 100, 10_000


def go_on(scene: Moving, *, after_ms: int) -> None:
    """Let the moved attempt start and report three steps of 400 ms after so long."""
    scene.report(events.JobStarted)
    scene.now_ms += after_ms
    scene.report(events.JobProgressed, steps_done=7, window_steps=2, window_ms=800)


def test_a_move_costs_the_time_from_the_stop_to_the_first_step_after_it() -> None:
    scene = Moving()
    scene.wish(migrate("n1.1"))
    stopped_at_ms = scene.now_ms
    scene.stopped()
    assert scene.job.moves.move_ms == 0
    go_on(scene, after_ms=20_000)
    assert scene.job.moves.move_ms == scene.now_ms - stopped_at_ms - 3 * 400
    assert scene.engine.state.running["j0"].move_ms == scene.job.moves.move_ms
    before = scene.job.moves.move_ms
    scene.report(events.JobProgressed, steps_done=9, window_steps=2, window_ms=800)
    assert scene.job.moves.move_ms == before, "once"


def test_the_time_in_which_the_next_attempt_is_prepared_costs_nothing() -> None:
    scene = Preparing()
    prepared = scene.order()
    scene.now_ms += 30_000
    scene.prepared(prepared)
    stopped_at_ms = scene.now_ms
    scene.stopped()
    go_on(scene, after_ms=1_000)
    assert scene.job.moves.move_ms == scene.now_ms - stopped_at_ms - 3 * 400


def test_what_a_move_cost_is_kept_over_a_crash() -> None:
    scene = Moving()
    scene.wish(migrate("n1.1"))
    scene.stopped()
    go_on(scene, after_ms=20_000)
    restored = SchedulerEngine.restore(scene.engine.snapshot(), make_policy=lambda name, values: scene.policy)
    assert restored.state.jobs["j0"].moves.move_ms == scene.job.moves.move_ms > 20_000


def test_a_job_that_was_requeued_and_not_moved_measures_nothing() -> None:
    scene = Moving()
    scene.wish(migrate("n1.1"))
    scene.tell(events.NodeLost, node_id="n1")
    scene.stopped()
    go_on(scene, after_ms=20_000)
    assert scene.job.moves.move_ms == 0


class OfAKind(Moving):
    """A job with a graph, about which the predictor does not answer."""

    def tell(self, kind: type[events.Event], **values: Any) -> list[commands.Command]:
        if kind is not events.JobSubmitted:
            return super().tell(kind, **values)
        super().tell(kind, graph_sha256="g", **values)
        return super().tell(events.PredictionFailed, key="k", device=DEVICE, code="UNAVAILABLE")


def test_a_job_that_was_never_moved_is_taken_to_cost_what_the_last_one_of_its_kind_did() -> None:
    scene = OfAKind(key="k")
    scene.wish(migrate("n1.1"))
    scene.stopped()
    go_on(scene, after_ms=20_000)
    scene.tell(events.JobSubmitted, request=job("late", key="k"))
    assert scene.engine.state.jobs["late"].moves.move_ms == scene.job.moves.move_ms > 20_000


class Disturbed:
    """OJPAP with two jobs on one GPU whose steps take far longer than was predicted, and another GPU idle."""

    def __init__(self, cost_ms: int = 0, *, step_ms: float = 100.0) -> None:
        self.play = Play("ojpap", gpus=2, parameters={"cost_max_ms": 10**10, "settle_ms": 0, "unshare": False})
        shape: dict[str, Any] = {"key": "key", "graph": "g", "share": Share.ANY, "max_slowdown_ratio": 9.0}
        shape |= {"steps_total": 10_000, "migration_cost_ms": cost_ms}
        self.play.submit("a", **shape)
        known = prediction(
            "key", memory=memory(1), utilization_ratio=0.3, sm_activity_ratio=0.3, step_ms={(1, 1): step_ms}
        )
        self.play.tell(events.PredictionArrived, prediction=known)
        self.play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["key"], 0.1)))
        self.steps = 0
        for ratio in (0.0, 0.0):
            self.window(ratio)
        self.play.submit("b", **shape)
        self.play.report(events.JobStarted, "b")
        self.play.tell(events.TimerFired, after_ms=60_000)
        self.orders = [*self.window(1.22), *self.window(1.22), *self.play.tell(events.TimerFired)]

    def window(self, slowdown_ratio: float) -> list[commands.Command]:
        window_ms = round(SOLO_MS * (1 + slowdown_ratio))
        self.steps += STEPS
        values = {"steps_done": self.steps, "window_steps": STEPS, "window_ms": window_ms}
        return self.play.report(events.JobProgressed, "a", after_ms=window_ms, **values)

    @property
    def moved(self) -> list[str]:
        return [one.job_id for one in self.orders if isinstance(one, commands.StopJob) and one.cause == "moved"]


def test_ojpap_moves_a_job_for_a_gain_above_the_cost_that_it_states_and_says_so() -> None:
    scene = Disturbed(40_000)
    assert scene.moved == ["a"]
    reason = scene.play.engine.state.jobs["a"].reason
    assert (reason.code, reason.numbers["cost_ms"]) == ("MIGRATES_FOR_GAIN", 40_000.0)
    assert reason.numbers["gained_ms"] > 40_000
    assert "the move costs 40.0 s" in describe_reason(reason)


@pytest.mark.parametrize("cost_ms", [10_000_000, 10**9])
def test_ojpap_leaves_a_job_where_a_move_costs_more_than_it_gains(cost_ms: int) -> None:
    assert Disturbed(cost_ms).moved == []
