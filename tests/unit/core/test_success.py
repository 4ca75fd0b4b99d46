"""Exit code 0: the author's word, unless a user asked for the end."""

from __future__ import annotations

import pytest

from scheduler_service.core import events
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Phase
from tests.support.engine_play import Play


@pytest.mark.parametrize("steps_total", [10, 0])
def test_success_of_a_program_that_reports_no_steps_is_accepted(steps_total: int) -> None:
    play = Play()
    play.submit(steps_total=steps_total)
    play.report(events.JobFinished, steps_done=0)
    assert play.phase() is Phase.FINISHED
    reason = play.engine.state.jobs["j0"].reason
    assert reason.code == "FINISHED_UNCOUNTED"
    assert "in the background ended with it" in describe_reason(reason)


def test_success_after_a_part_of_the_steps_is_accepted_and_says_so() -> None:
    play = Play()
    play.submit()
    play.report(events.JobFinished, steps_done=9)
    assert play.phase() is Phase.FINISHED
    assert play.engine.state.jobs["j0"].reason.code == "FINISHED_EARLY"
    assert "9 of 10 steps" in describe_reason(play.engine.state.jobs["j0"].reason)


@pytest.mark.parametrize(("steps_done", "phase"), [(9, Phase.PENDING), (10, Phase.FINISHED)])
@pytest.mark.parametrize(("kind", "exit_class"), [(events.JobFailed, "fenced"), (events.JobStopped, "stopped")])
def test_success_of_a_program_that_something_else_stopped_counts_only_after_its_last_step(
    kind: type[events.AttemptReport], exit_class: str, steps_done: int, phase: Phase
) -> None:
    play = Play()
    play.submit()
    play.report(kind, exit_class=exit_class, exit_code=0, steps_done=steps_done)
    assert play.phase() is phase


@pytest.mark.parametrize(
    ("steps_done", "code", "told"),
    [
        (9, "FINISHED_EARLY", "(--steps, or total= of job.report) is too large"),
        (12, "FINISHED_BEYOND", "after 12 steps, and 10 were stated"),
    ],
)
def test_a_wrong_number_of_steps_is_told_with_both_numbers(steps_done: int, code: str, told: str) -> None:
    play = Play()
    play.submit()
    play.report(events.JobFinished, steps_done=steps_done)
    reason = play.engine.state.jobs["j0"].reason
    assert reason.code == code
    assert told in describe_reason(reason)
