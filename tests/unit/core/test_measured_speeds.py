"""Step times over numbers of GPUs: foreseen first, corrected by what was measured, fitted from three counts on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from scheduler_service.core import commands, events, fit_events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.predictions.measured_speeds import SHAPES_MAX, MeasuredSpeeds, with_speeds
from scheduler_service.core.predictions.speed_fits import COUNTS_ASKED_MAX
from scheduler_service.core.records import Phase, Share
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, prediction

FORESEEN = {(1, 64): 800.0, (1, 32): 840.0, (2, 32): 400.0, (4, 16): 200.0}
JOB: dict[str, Any] = {
    "key": "k", "graph": "g", "global_batch_size": 64, "steps_total": 1_000_000, "share": Share.NEVER,
    "allowed_gpus": (1, 2, 4),
}  # fmt: skip


def known(play: Play) -> Mapping[tuple[int, int], float]:
    found = play.engine.state.predictions.job("k", DEVICE)
    assert found is not None
    return found.step_ms


def started(play: Play, name: str, gpus: int) -> None:
    play.submit(name, **{**JOB, "gpus": gpus})
    if play.engine.state.predictions.job("k", DEVICE) is None:
        play.tell(events.PredictionArrived, prediction=prediction("k", step_ms=FORESEEN))
    play.report(events.JobStarted, name)


def measure(play: Play, name: str, step_ms: int, **changes: Any) -> list[commands.RequestSpeedFit]:
    found: list[commands.Command] = []
    for _ in range(2):
        done = play.engine.state.jobs[name].steps_done + 10
        window = {"steps_done": done, "window_steps": 10, "window_ms": 10 * step_ms, **changes}
        found += play.report(events.JobProgressed, name, after_ms=10 * step_ms + 100, **window)
    return [command for command in found if isinstance(command, commands.RequestSpeedFit)]


@pytest.fixture(name="play")
def _play() -> Play:
    return Play("fifo", gpus=8)


def test_a_measured_step_time_is_what_is_known_and_corrects_the_counts_that_never_ran(play: Play) -> None:
    started(play, "a", 2)
    measure(play, "a", 600)
    assert known(play)[2, 32] == 600.0
    assert known(play)[4, 16] == pytest.approx(300.0), "the foreseen curve, half as slow again as foreseen"


def test_a_measurement_that_agrees_changes_nothing(play: Play) -> None:
    started(play, "a", 2)
    measure(play, "a", 405)
    assert known(play) == FORESEEN


def test_a_window_with_others_on_the_gpu_says_nothing_of_step_times_alone(play: Play) -> None:
    started(play, "a", 2)
    measure(play, "a", 600, quality_flags=("foreign_load",))
    assert known(play) == FORESEEN


def test_three_counts_ask_for_a_curve_once_and_its_answer_is_used(play: Play) -> None:
    for gpus, step_ms in ((1, 800), (2, 600)):
        started(play, f"j{gpus}", gpus)
        assert not measure(play, f"j{gpus}", step_ms)
    started(play, "j4", 4)
    (question,) = measure(play, "j4", 500)
    assert question.samples == ((1, 800.0), (2, 600.0), (4, 500.0))
    assert question.counts == (1, 2, 4)
    assert question.global_batch_size == 64
    assert not measure(play, "j4", 900), "an answer is awaited"
    play.tell(fit_events.SpeedFitted, key="k", device=DEVICE, step_ms={1: 810.0, 2: 590.0, 4: 510.0, 3: 1.0})
    assert known(play)[2, 32] == 600.0, "what nobody asked about makes the whole answer void"


def test_a_curve_tells_the_counts_that_never_ran(play: Play) -> None:
    for gpus in (1, 2, 4):
        started(play, f"j{gpus}", gpus)
        measure(play, f"j{gpus}", 1_000 - 100 * gpus)
    play.tell(fit_events.SpeedFitted, key="k", device=DEVICE, step_ms={1: 910.0, 2: 790.0, 4: 610.0})
    play.submit("wide", **{**JOB, "gpus": 8, "allowed_gpus": (1, 2, 4, 8)})
    (question,) = measure(play, "j1", 900)
    assert question.counts == (1, 2, 4, 8), "a job that may have another count asks once more"
    play.tell(fit_events.SpeedFitted, key="k", device=DEVICE, step_ms={1: 910.0, 2: 790.0, 4: 610.0, 8: 500.0})
    assert known(play)[8, 8] == 500.0
    assert known(play)[1, 64] == pytest.approx(900.0), "what was measured stays"
    assert known(play)[1, 32] == pytest.approx(910.0 * 840 / 800), "a micro-batch that never ran follows the curve"


def test_without_an_answer_what_was_foreseen_goes_on_and_is_asked_again_when_it_moved(play: Play) -> None:
    for gpus in (1, 2, 4):
        started(play, f"j{gpus}", gpus)
        measure(play, f"j{gpus}", 1_000)
    before = dict(known(play))
    assert not play.tell(fit_events.SpeedFitted, key="k", device=DEVICE, code="PREDICTOR_UNAVAILABLE")
    assert known(play) == before
    assert not measure(play, "j1", 1_010)
    assert measure(play, "j1", 2_000)


@pytest.mark.parametrize("wrong_ms", [0.0, -1.0, 1e-9, 1e308, float("nan"), float("inf")])
def test_a_curve_that_cannot_be_is_not_used(play: Play, wrong_ms: float) -> None:
    for gpus in (1, 2, 4):
        started(play, f"j{gpus}", gpus)
        measure(play, f"j{gpus}", 1_000)
    before = dict(known(play))
    play.tell(fit_events.SpeedFitted, key="k", device=DEVICE, step_ms={1: 999.0, 2: 999.0, 4: wrong_ms})
    assert known(play) == before


def test_a_crash_asks_again_and_keeps_what_was_measured_and_fitted(play: Play) -> None:
    for gpus in (1, 2, 4):
        started(play, f"j{gpus}", gpus)
        measure(play, f"j{gpus}", 1_000 - 100 * gpus)
    restored = SchedulerEngine.restore(json.loads(json.dumps(play.engine.snapshot())), make_policy=make_policy)
    (question,) = (one for one in restored.reissue() if isinstance(one, commands.RequestSpeedFit))
    assert question.samples == ((1, 900.0), (2, 800.0), (4, 600.0))
    answer = fit_events.SpeedFitted(at_ms=play.now_ms, key="k", device=DEVICE, step_ms={1: 10.0, 2: 20.0, 4: 30.0})
    restored.handle(answer)
    again = SchedulerEngine.restore(json.loads(json.dumps(restored.snapshot())), make_policy=make_policy)
    assert not [one for one in again.reissue() if isinstance(one, commands.RequestSpeedFit)]
    found = again.state.predictions.job("k", DEVICE)
    assert found is not None
    assert found.step_ms[2, 32] == 800.0
    assert found.step_ms[1, 32] == pytest.approx(10.0 * 840 / 800)


def test_jobs_of_one_key_teach_each_other(play: Play) -> None:
    started(play, "a", 2)
    measure(play, "a", 600)
    play.report(events.JobFinished, "a", steps_done=20)
    play.submit("b", **{**JOB, "gpus": 4})
    assert known(play)[4, 16] == pytest.approx(300.0)


def test_shapes_of_a_key_are_bounded() -> None:
    speeds = MeasuredSpeeds()
    for gpus in range(1, 3 * SHAPES_MAX):
        speeds.observe("k", DEVICE, (gpus, 1), steps=1, window_ms=gpus, is_doubtful=False)
    assert len(speeds.sound_step_ms("k", DEVICE)) == SHAPES_MAX
    speeds.forget("k")
    assert not speeds.stored_solo()


@pytest.mark.parametrize("policy", ["optimus", "elastic", "pollux"])
@for_each(("second_ms", "given"), [(800, 1), (400, 2)])
def test_a_policy_gives_as_many_gpus_as_were_measured_to_help(policy: str, second_ms: int, given: int) -> None:
    play = Play(policy, gpus=2)
    for gpus, step_ms in ((1, 800), (2, second_ms)):
        name = f"j{gpus}"
        play.submit(name, **{**JOB, "gpus": gpus, "allowed_gpus": (gpus,)})
        if gpus == 1:
            play.tell(events.PredictionArrived, prediction=prediction("k", step_ms=FORESEEN))
        play.report(events.JobStarted, name)
        measure(play, name, step_ms)
        play.report(events.JobFinished, name, steps_done=1_000_000)
    play.submit("pupil", **{**JOB, "gpus": 2, "allowed_gpus": (1, 2)})
    play.tell(events.TimerFired, after_ms=600_000)
    assert len(play.engine.state.jobs["pupil"].assignments) == given


def test_the_shortest_job_is_the_one_that_was_measured_to_be_short() -> None:
    play = Play("sjf_bsbf", gpus=1)
    for name in ("slow", "quick"):
        play.submit(name, key=name, graph="g", steps_total=100, share=Share.NEVER)
        play.tell(events.PredictionArrived, prediction=prediction(name, step_ms={(1, 1): 100.0}))
        play.report(events.JobStarted, name)
        measure(play, name, {"slow": 5_000, "quick": 100}[name])
        play.report(events.JobFinished, name, steps_done=100)
    play.submit("running", key="quick", graph="g", share=Share.NEVER)
    play.submit("first", key="slow", graph="g", steps_total=100, share=Share.NEVER)
    play.submit("second", key="quick", graph="g", steps_total=100, share=Share.NEVER)
    play.report(events.JobFinished, "running", steps_done=10)
    assert play.phase("second") is Phase.STARTING


def test_between_two_measured_counts_the_error_of_the_foreseen_curve_is_interpolated() -> None:
    measured = {(1, 64): 800.0, (4, 16): 800.0}
    found = with_speeds(prediction("k", step_ms=FORESEEN), measured, None).step_ms
    assert found[2, 32] == pytest.approx(400.0 * 2), "a quarter of the speed at four GPUs, half of it at two"


def test_a_question_for_a_curve_is_bounded_however_many_counts_jobs_may_have(play: Play) -> None:
    for gpus in (1, 2, 4):
        started(play, f"j{gpus}", gpus)
        measure(play, f"j{gpus}", 1_000 - 100 * gpus)
    play.tell(fit_events.SpeedFitted, key="k", device=DEVICE, code="UNAVAILABLE")
    play.submit("odd", **{**JOB, "gpus": 1, "allowed_gpus": tuple(range(1, 3_000))})
    (question,) = measure(play, "j1", 900)
    assert len(question.counts) == COUNTS_ASKED_MAX
    assert not measure(play, "j2", 800)
