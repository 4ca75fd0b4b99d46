"""Optimus may let a job run on a few numbers of GPUs first, until its steps were measured on each."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.errors import PolicyError
from scheduler_service.core.records import Share
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import prediction

FORESEEN = {(1, 64): 800.0, (2, 32): 400.0, (4, 16): 200.0, (8, 8): 100.0}


def submit(play: Play, name: str) -> None:
    fields: dict[str, Any] = {"key": "k", "graph": "g", "global_batch_size": 64, "share": Share.NEVER}
    play.submit(name, **fields, steps_total=1_000_000, allowed_gpus=(1, 2, 4, 8))
    if play.engine.state.predictions.job("k", "standin") is None:
        play.tell(events.PredictionArrived, prediction=prediction("k", step_ms=FORESEEN))


def run_and_measure(play: Play, name: str) -> int:
    """Report two windows of the present attempt, and answer what follows; return the GPUs that it had."""
    play.report(events.JobStarted, name)
    held = len(play.engine.state.jobs[name].assignments)
    for _ in range(2):
        done = play.engine.state.jobs[name].steps_done + 10
        window = {"steps_done": done, "window_steps": 10, "window_ms": 8_000}
        found = play.report(events.JobProgressed, name, after_ms=8_100, **window)
    if any(isinstance(one, commands.StopJob) for one in found):
        play.report(events.JobStopped, name, exit_class="checkpointed", exit_code=85)
    return held


def counts(play: Play, name: str, rounds: int) -> list[int]:
    return [run_and_measure(play, name) for _ in range(rounds)]


def explorer(explored_counts: int) -> Play:
    return Play("optimus", gpus=8, parameters={"explored_counts": explored_counts})


def test_a_job_runs_on_the_wanted_counts_and_then_stays() -> None:
    play = explorer(3)
    submit(play, "a")
    assert counts(play, "a", 3) == [8, 1, 4]
    before = play.engine.state.jobs["a"].attempt
    for _ in range(3):
        play.tell(events.TimerFired, after_ms=10_000)
    assert play.engine.state.jobs["a"].attempt == before


def test_without_the_parameter_no_job_moves_to_be_measured() -> None:
    play = explorer(0)
    submit(play, "a")
    assert run_and_measure(play, "a") == 8
    assert play.engine.state.jobs["a"].attempt == 1


def test_one_job_of_a_kind_explores_for_all() -> None:
    play = explorer(2)
    for name in ("a", "b"):
        submit(play, name)
    assert sum(len(play.engine.state.jobs[name].assignments) for name in ("a", "b")) == 8
    for name in ("a", "b"):
        run_and_measure(play, name)
    assert sum(play.engine.state.jobs[name].attempt > 1 for name in ("a", "b")) <= 1


@pytest.mark.parametrize("value", [-1, 9])
def test_a_number_of_counts_without_a_meaning_is_refused(value: int) -> None:
    with pytest.raises(PolicyError, match="explored_counts"):
        make_policy("optimus", {"explored_counts": value})
