"""A job whose script says how many steps it has is planned with by that, where its owner stated none."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import events
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase
from tests.support.engine_play import Play


def running(**changes: Any) -> Play:
    play = Play()
    play.submit(**{"key": "", "steps_total": 0, **changes})
    play.report(events.JobStarted)
    return play


def job_of(play: Play) -> JobRecord:
    return play.engine.state.jobs["j0"]


def steps_after(play: Play, *said: tuple[int, int]) -> list[int]:
    """Return what is planned with after each report of (steps done, total)."""
    planned = []
    for done, total in said:
        play.report(events.JobProgressed, steps_done=done, window_steps=1, window_ms=10, steps_total=total)
        planned.append(job_of(play).request.steps_total)
    return planned


def test_what_the_script_says_is_planned_with_and_kept_while_it_says_nothing() -> None:
    play = running()
    assert steps_after(play, (1, 0), (2, 40), (3, 0)) == [0, 40, 40]
    assert steps_after(running(), (0, 40), (0, 0)) == [40, 40]
    assert play.engine.state.running["j0"].request.steps_total == 40, "what policies see"
    assert job_of(play).reported.script_steps_total == 40


def test_the_newest_total_counts_and_none_that_the_script_has_passed() -> None:
    assert steps_after(running(), (1, 40), (2, 60), (3, 50), (51, 50), (52, 70)) == [40, 60, 50, 0, 70]


@pytest.mark.parametrize("total", [-5, 1, 10**12 + 1, 2**60])
def test_a_total_that_cannot_be_is_not_planned_with(total: int) -> None:
    assert steps_after(running(), (2, total)) == [0]
    assert steps_after(running(), (2, 40), (3, total)) == [40, 40]


@pytest.mark.parametrize("stated", [{"steps_total": 30}, {"target_loss": 0.5}])
def test_what_the_owner_stated_comes_before_what_the_script_says(stated: dict[str, Any]) -> None:
    play = running(**stated)
    before = job_of(play).request.steps_total
    assert steps_after(play, (2, 40)) == [before]
    assert job_of(play).reported.script_steps_total == 0


def test_a_job_that_was_told_to_stop_after_its_scripts_last_step_is_finished() -> None:
    play = running()
    steps_after(play, (40, 40))
    play.report(events.JobStopped, exit_class="stopped", steps_done=40)
    assert job_of(play).phase is Phase.FINISHED


def test_a_job_that_was_told_to_stop_beyond_its_scripts_total_is_not_finished() -> None:
    play = running()
    steps_after(play, (40, 60))
    play.report(events.JobStopped, exit_class="stopped", steps_done=61)
    assert job_of(play).phase is not Phase.FINISHED
    assert (job_of(play).reported.script_steps_total, job_of(play).request.steps_total) == (0, 0)


def test_a_success_beyond_the_scripts_total_asks_nobody_to_correct_what_nobody_stated() -> None:
    play = running()
    steps_after(play, (40, 60))
    play.report(events.JobFinished, steps_done=61)
    assert (job_of(play).phase, job_of(play).reason.code) == (Phase.FINISHED, "FINISHED")
