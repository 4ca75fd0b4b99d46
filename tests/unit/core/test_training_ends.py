"""Jobs with a target loss: what they report is kept and thinned, asked about now and then, and planned with."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from scheduler_service.core import commands, events, fit_events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.training_ends import LOSSES_MAX, LOSSES_MIN
from scheduler_service.core.records import Phase
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play

REPORT_STEPS = 100


def running(**changes: Any) -> Play:
    play = Play()
    play.submit(**{"key": "", "steps_total": 0, "target_loss": 0.5, **changes})
    play.report(events.JobStarted)
    return play


def report(play: Play, reports: int, loss: float | None = 2.0) -> list[commands.RequestLossFit]:
    found: list[commands.Command] = []
    for _ in range(reports):
        done = job_of(play).steps_done + REPORT_STEPS
        found += play.report(
            events.JobProgressed, steps_done=done, window_steps=REPORT_STEPS, window_ms=1_000, loss=loss
        )
    return [command for command in found if isinstance(command, commands.RequestLossFit)]


def job_of(play: Play) -> JobRecord:
    return play.engine.state.jobs["j0"]


def answer(play: Play, **values: Any) -> None:
    known = {"steps_total": 5_000.0, "steps_lower": 4_000.0, "steps_upper": 7_000.0, "is_reliable": True}
    play.tell(fit_events.LossFitted, job_id="j0", **{**known, **values})


def test_a_few_losses_ask_when_the_target_is_reached_and_policies_plan_with_the_answer() -> None:
    play = running()
    assert not report(play, LOSSES_MIN - 1)
    (question,) = report(play, 1)
    assert question.target_loss == 0.5
    assert question.losses[0] == (REPORT_STEPS, 2.0)
    assert len(question.losses) == LOSSES_MIN
    answer(play, confidence=0.9)
    assert job_of(play).request.steps_total == 5_000
    assert play.engine.state.running["j0"].request.steps_total == 5_000, "what policies see"
    end = job_of(play).reported.training_end
    assert end is not None
    assert (end.steps_lower, end.steps_total, end.steps_upper, end.confidence) == (4_000, 5_000, 7_000, 0.9)


def test_it_is_asked_again_after_a_tenth_more_steps_and_not_while_an_answer_is_awaited() -> None:
    play = running()
    assert len(report(play, 20)) == 1
    answer(play)
    assert len(report(play, 1)) == 1, "far more than a tenth since the question"
    answer(play)
    assert not report(play, 2)
    assert len(report(play, 1)) == 1


def test_where_the_curves_disagree_the_plan_stays_and_the_interval_is_kept() -> None:
    play = running(steps_total=9_000)
    report(play, LOSSES_MIN)
    answer(play, is_reliable=False)
    assert job_of(play).request.steps_total == 9_000
    end = job_of(play).reported.training_end
    assert end is not None
    assert end.steps_upper == 7_000


def test_what_is_foreseen_stays_between_what_was_done_and_what_was_stated() -> None:
    play = running(steps_total=6_000)
    report(play, LOSSES_MIN)
    answer(play, steps_total=1.0, steps_lower=1.0, steps_upper=1e300)
    end = job_of(play).reported.training_end
    assert end is not None
    assert (end.steps_lower, end.steps_total, end.steps_upper) == (801, 801, 6_000)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 0.0])
def test_an_end_that_cannot_be_is_not_planned_with(number: float) -> None:
    play = running(steps_total=6_000)
    report(play, LOSSES_MIN)
    answer(play, steps_total=number)
    assert job_of(play).request.steps_total == 6_000
    end = job_of(play).reported.training_end
    assert end is not None
    assert (end.steps_total, end.code) == (0, "NOT_FORESEEABLE")


def test_without_an_answer_nothing_changes_and_it_is_asked_again_later() -> None:
    play = running(steps_total=6_000)
    report(play, LOSSES_MIN)
    answer(play)
    assert report(play, 1)
    answer(play, code="PREDICTOR_UNAVAILABLE")
    end = job_of(play).reported.training_end
    assert end is not None
    assert (end.steps_total, end.code) == (5_000, "PREDICTOR_UNAVAILABLE")
    assert report(play, 2)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf"), -0.1])
def test_what_is_no_loss_is_not_kept(loss: float | None) -> None:
    play = running()
    assert not report(play, 2 * LOSSES_MIN, loss)


def test_a_job_without_a_target_keeps_no_losses() -> None:
    play = running(target_loss=0.0, steps_total=10_000)
    assert not report(play, 2 * LOSSES_MIN)
    assert job_of(play).reported.training_end is None


def test_losses_are_thinned_over_the_whole_run() -> None:
    play = running()
    report(play, 3 * LOSSES_MAX)
    end = job_of(play).reported.training_end
    assert end is not None
    assert LOSSES_MAX / 3 < len(end.losses) <= LOSSES_MAX
    steps = [done for done, _ in end.losses]
    assert steps[0] == REPORT_STEPS
    assert steps[-1] >= 3 * LOSSES_MAX * REPORT_STEPS - 8 * REPORT_STEPS
    gaps = [later - sooner for sooner, later in pairwise(steps)]
    assert max(gaps) <= 2 * min(gaps)


def test_a_program_that_ends_at_its_target_has_finished_whatever_was_foreseen() -> None:
    for done in (900, 6_500):
        play = running(steps_total=6_000)
        report(play, LOSSES_MIN)
        answer(play)
        play.report(events.JobFinished, steps_done=done)
        assert play.phase() is Phase.FINISHED
        reason = job_of(play).reason
        assert (reason.code, reason.numbers["newest_loss"]) == ("FINISHED_WITH_TARGET", 2.0)


def test_a_stop_beyond_the_foreseen_steps_is_no_end() -> None:
    play = running()
    report(play, LOSSES_MIN)
    answer(play, steps_total=900.0, steps_lower=850.0, steps_upper=950.0)
    play.report(events.JobStopped, exit_class="stopped", exit_code=0, steps_done=1_000)
    assert play.phase() is not Phase.FINISHED, "only its program knows whether the target was reached"


def test_an_answer_about_an_ended_or_forgotten_job_changes_nothing() -> None:
    play = running()
    report(play, LOSSES_MIN)
    play.report(events.JobFinished, steps_done=900)
    answer(play)
    assert job_of(play).request.steps_total == 0
    play.tell(fit_events.LossFitted, job_id="gone", steps_total=1.0)


def test_a_crash_asks_again_and_keeps_the_losses() -> None:
    play = running()
    (before,) = report(play, LOSSES_MIN)
    restored = SchedulerEngine.restore(json.loads(json.dumps(play.engine.snapshot())), make_policy=make_policy)
    assert [one for one in restored.reissue() if isinstance(one, commands.RequestLossFit)] == [before]
