"""The plan check states the slowdown of every start and move itself: no policy can leave it out or say another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from scheduler_service.core import events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Placement, Start
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.records import Assignment, JobRequest, Phase, Reason, Share
from tests.support.scheduling import GIB, all_pairs, job, node, pending, prediction, running, store, view

KEY, PAIR_RATIO = "key", 0.25


def shared(name: str) -> JobRequest:
    return job(name, key=KEY, share=Share.ANY, max_slowdown_ratio=1.0, memory_request_bytes=GIB)


def seen(*, pairs: bool = True) -> SchedulingView:
    """One job waits and two run: one on GPU n0.0, one on n0.1; n0.2 is free."""
    return view(
        nodes=[node("n0", 3)],
        waiting=[pending(shared("new"))],
        holding=[running(shared("old"), ["n0.0"]), running(shared("other"), ["n0.1"])],
        predictions=store([prediction(KEY)], all_pairs([KEY], PAIR_RATIO) if pairs else ()),
    )


def start(gpu_id: str, numbers: Mapping[str, float]) -> Start:
    reason = Reason(code="STARTS_SHARED", numbers=numbers)
    return Start(job_id="new", reason=reason, assignments=(Assignment(gpu_id=gpu_id),), micro_batch_size=1)


def migrate(gpu_id: str, numbers: Mapping[str, float]) -> Migrate:
    reason = Reason(code="MIGRATES_FROM_INTERFERENCE", numbers=numbers)
    return Migrate(job_id="old", reason=reason, assignments=(Assignment(gpu_id=gpu_id),))


def checked(decision: Decision, *, pairs: bool = True) -> Placement:
    at = seen(pairs=pairs)
    plan = check_plan(at, {one.request.job_id: one for one in at.pending}, [decision])
    assert not [one for one in plan.rejections if one.reason.code != "NO_DECISION"]
    return next(one for one in plan.decisions if isinstance(one, Placement))


@pytest.mark.parametrize("said", [{}, {"slowdown_ratio": 0.0, "neighbour_slowdown_ratio": 0.0}])
@pytest.mark.parametrize("decision", [start, migrate])
def test_what_a_policy_leaves_out_or_says_wrongly_is_stated_by_the_check(decision: Any, said: dict[str, float]) -> None:
    found = checked(decision("n0.1", {"cost": 3.0, **said}))
    assert found.predicted_slowdown_ratio == PAIR_RATIO
    assert found.reason.numbers == {"cost": 3.0, "slowdown_ratio": PAIR_RATIO, "neighbour_slowdown_ratio": PAIR_RATIO}


def test_of_a_job_alone_nothing_is_stated_but_what_its_reason_speaks_of() -> None:
    assert checked(start("n0.2", {"cost": 3.0})) == start("n0.2", {"cost": 3.0})
    moved = checked(migrate("n0.2", {"slowdown_ratio": 0.7}))
    assert (moved.predicted_slowdown_ratio, moved.reason.numbers) == (None, {"slowdown_ratio": 0.0})


def test_a_number_of_which_nothing_is_known_is_taken_back() -> None:
    found = checked(start("n0.1", {"slowdown_ratio": 0.1, "neighbour_slowdown_ratio": 0.1}), pairs=False)
    assert (found.predicted_slowdown_ratio, found.reason.numbers) == (None, {})


class OneMove:
    """A policy that starts jobs on n0.0 and n0.1 and, when asked to, moves the first to the second."""

    is_moving = False

    def decide(self, at: SchedulingView) -> list[Decision]:
        if self.is_moving:
            self.is_moving = False
            return [migrate("n0.1", {})]
        gpu_ids = {"old": "n0.0", "other": "n0.1"}
        return [
            Start(
                job_id=(name := one.request.job_id),
                reason=Reason(code="STARTS_ALONE", numbers={"gpus_count": 1}),
                assignments=(Assignment(gpu_id=gpu_ids[name]),),
                micro_batch_size=1,
            )
            for one in at.pending
        ]


@pytest.mark.parametrize("version", ["this", "older"])
def test_a_moved_job_keeps_what_was_expected_of_its_new_place_through_a_restart(version: str) -> None:
    policy = OneMove()
    engine = SchedulerEngine(make_policy=lambda name, values: policy, policy="x")
    engine.handle(events.NodeJoined(at_ms=1, node=node("n0", 2)))
    for name in ("old", "other"):
        engine.handle(events.JobSubmitted(at_ms=2, request=shared(name), graph_sha256="g"))
    engine.handle(events.PredictionArrived(at_ms=3, prediction=prediction(KEY)))
    engine.handle(events.PairPredictionsArrived(at_ms=4, pairs=tuple(all_pairs([KEY], PAIR_RATIO))))
    policy.is_moving = True
    engine.handle(events.TimerFired(at_ms=5))
    snapshot = engine.snapshot()
    if version == "older":
        _forget(snapshot, "predicted_slowdown_ratio")
    engine = SchedulerEngine.restore(snapshot, make_policy=lambda name, values: policy)
    old = engine.state.jobs["old"]
    assert old.phase is Phase.STOPPING
    engine.handle(
        events.JobStopped(at_ms=6, job_id="old", attempt=old.attempt, fence=old.fence, exit_class="checkpointed")
    )
    assert engine.state.jobs["old"].gpu_ids == ("n0.1",)
    expected = PAIR_RATIO if version == "this" else None
    assert engine.state.jobs["old"].shape.predicted_slowdown_ratio == expected


def _forget(stored: object, name: str) -> None:
    """Drop a field from the kept places of moves, which had none in older versions."""
    if isinstance(stored, dict):
        target = cast("dict[str, object]", stored)
        if "memory_reserved_bytes" in target and "reason" in target and "phase" not in target:
            target.pop(name)
        for value in target.values():
            _forget(value, name)
    elif isinstance(stored, list | tuple):
        for value in stored:
            _forget(value, name)
