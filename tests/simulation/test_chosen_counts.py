"""Policies that stop or reshape running jobs over a whole run: no job is forgotten, no two take turns for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Phase, Share
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.drawn_faults import Faults
from tests.support.engine_play import Play
from tests.support.scheduling import job, prediction
from tests.support.simulated_cluster import SimulatedCluster

RESTLESS: Mapping[str, Mapping[str, object]] = {
    "tiresias": {"queue_limit_gpu_ms": 3_000, "run_min_ms": 1_000, "interval_ms": 1_000},
    "optimus": {"interval_ms": 2_000},
    "pollux": {"interval_ms": 2_000, "restart_cost_ms": 100},
}
"""So impatient that much happens in a short run."""


def finished(policy: str, seed: int) -> SimulatedCluster:
    world = SimulatedCluster(seed, jobs=14, nodes=3, gpus=3, policy=policy, faults=Faults())
    world.engine = SchedulerEngine(make_policy=make_policy, policy=policy, parameters=RESTLESS[policy])
    world.run()
    return world


@for_each("seed", range(4))
@pytest.mark.parametrize("policy", sorted(RESTLESS))
def test_every_job_finishes_and_no_decision_is_refused(policy: str, seed: int) -> None:
    world = finished(policy, seed)
    assert set(world.outcomes().values()) == {Phase.FINISHED}
    assert not world.engine.state.rejected


def launched(found: list[commands.Command]) -> dict[str, int]:
    """GPUs by job."""
    return {one.job_id: len(one.assignments) for one in found if isinstance(one, commands.LaunchJob)}


@pytest.mark.parametrize("policy", ["optimus", "pollux"])
def test_a_running_job_shrinks_for_a_new_one_and_grows_back_when_it_has_gone(policy: str) -> None:
    play = Play(policy, gpus=2, parameters=RESTLESS[policy])
    elastic: dict[str, Any] = {
        "key": "key",
        "gpus": 2,
        "allowed_gpus": (1, 2),
        "global_batch_size": 2,
        "share": Share.NEVER,
    }
    play.submit("old", graph="g", steps_total=10_000, **elastic)
    known = prediction("key", step_ms={(1, 2): 100.0, (2, 1): 60.0})
    assert launched(play.tell(events.PredictionArrived, prediction=known)) == {"old": 2}
    play.report(events.JobStarted, "old")
    found = play.tell(
        events.JobSubmitted, after_ms=100_000, request=job("new", steps_total=10, **elastic), graph_sha256="g"
    )
    assert [(type(one), one.cause) for one in found if isinstance(one, commands.StopJob)] == [
        (commands.StopJob, "moved")
    ]
    stopped: dict[str, Any] = {"exit_class": "checkpointed", "exit_code": 0, "steps_done": 40}
    assert launched(play.report(events.JobStopped, "old", **stopped)) == {"old": 1, "new": 1}
    play.report(events.JobStarted, "old")
    play.report(events.JobStarted, "new")
    play.report(events.JobFinished, "new", after_ms=100_000, steps_done=10)
    assert play.phase("old") is Phase.STOPPING
    assert launched(play.report(events.JobStopped, "old", **stopped)) == {"old": 2}
