"""What is reported to the predictor of an attempt, and how doubtful windows are kept apart from sound ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.codec import decode, decode_event, encode, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.predictions.stored_predictions import StoredPredictions
from scheduler_service.core.records import Level, PairPrediction, Phase, Share
from scheduler_service.core.sharing.colocation_slowdown import is_sure
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import GIB, memory, prediction

_FOREIGN = ("foreign_load",)


def _running(play: Play, name: str = "a", **changes: Any) -> Play:
    play.submit(name, key=name, graph="g", steps_total=10_000, **{"share": Share.ANY, **changes})
    play.tell(events.PredictionArrived, prediction=prediction(name, prediction_id=f"p-{name}"))
    play.tell(events.PairPredictionsFailed, device="standin", keys=(name,), code="UNAVAILABLE")
    play.report(events.JobStarted, name)
    return play


def _step(play: Play, name: str = "a", *step_ms: int, **values: Any) -> list[commands.RecordOutcome]:
    found: list[commands.Command] = []
    for each_ms in step_ms:
        done = play.engine.state.jobs[name].steps_done + 10
        window = {"steps_done": done, "window_steps": 10, "window_ms": 10 * each_ms}
        found += play.report(events.JobProgressed, name, after_ms=10_000, **window, **values)
    return _outcomes(found)


def _outcomes(found: list[commands.Command]) -> list[commands.RecordOutcome]:
    return [command for command in found if isinstance(command, commands.RecordOutcome)]


def _reported(found: list[commands.RecordOutcome]) -> list[tuple[object, ...]]:
    return [(one.step_ms_mean, one.memory_peak_bytes, one.quality_flags) for one in found]


def test_steps_alone_are_reported_once_and_the_peak_of_a_run_that_goes_on_as_the_least() -> None:
    found = _step(_running(Play()), "a", *[500] * 6, memory_peak_bytes=700, utilization_ratio=0.5)
    assert _reported(found) == [(500.0, None, ()), (None, 700, ("incomplete_run",))]
    assert found[0].utilization_ratio == 0.5


def test_a_cancelled_job_teaches_its_peak_as_the_least_that_it_needs() -> None:
    play = _running(Play())
    assert not _step(play, "a", 500, memory_peak_bytes=700)
    play.tell(events.JobCancelled, job_id="a")
    found = _outcomes(play.report(events.JobStopped, "a", exit_class="stopped", memory_peak_bytes=900))
    assert _reported(found) == [(None, 900, ("incomplete_run",))]
    assert found[0].prediction_id == "p-a"


def test_a_job_that_finishes_while_it_is_cancelled_teaches_the_least_too() -> None:
    play = _running(Play())
    play.tell(events.JobCancelled, job_id="a")
    found = _outcomes(play.report(events.JobFinished, "a", steps_done=3, memory_peak_bytes=900))
    assert _reported(found) == [(None, 900, ("incomplete_run",))]


@pytest.mark.parametrize("exit_class", ["gpu_oom", "error", "signal", "lost"])
def test_a_failed_attempt_teaches_its_peak_as_the_least_that_the_job_needs(exit_class: str) -> None:
    play = _running(Play())
    found = _outcomes(play.report(events.JobFailed, "a", exit_class=exit_class, memory_peak_bytes=900))
    assert _reported(found) == [(None, 900, ("incomplete_run",))]


def test_a_finished_job_teaches_what_it_needs_also_where_it_was_never_alone() -> None:
    play = _running(Play())
    _running(play, "b")
    _step(play, "a", 500, 500, memory_peak_bytes=700)
    found = _outcomes(play.report(events.JobFinished, "a", steps_done=10_000, memory_peak_bytes=900))
    assert _reported(found) == [(None, 900, ())]
    assert found[0].window_ms >= 20_000


def test_a_reported_peak_is_not_reported_again() -> None:
    play = _running(Play())
    _step(play, "a", *[500] * 6, memory_peak_bytes=900)
    play.tell(events.JobCancelled, job_id="a")
    assert not _outcomes(play.report(events.JobStopped, "a", exit_class="stopped", memory_peak_bytes=900))


def _asked(found: list[commands.Command]) -> list[str]:
    return [command.key for command in found if isinstance(command, commands.RequestPrediction)]


def _know_no_pairs(play: Play) -> None:
    play.tell(events.PairPredictionsFailed, device="standin", keys=("a",), code="UNAVAILABLE")


def _cancel(play: Play, name: str, memory_peak_bytes: int) -> list[commands.Command]:
    found = play.tell(events.JobCancelled, job_id=name)
    found += play.report(events.JobStopped, name, exit_class="stopped", memory_peak_bytes=memory_peak_bytes)
    return found


def test_after_a_peak_above_what_is_known_the_next_job_of_the_key_is_asked_about_again_and_shows_the_answer() -> None:
    play = _running(Play())
    assert _asked(_cancel(play, "a", 3 * GIB)) == [], "no job of the key lives"
    assert _asked(play.submit("b", key="a", graph="g", share=Share.ANY)) == ["a"]
    _know_no_pairs(play)
    assert play.phase("b") is Phase.STARTING, "nothing waits for the answer"
    play.tell(events.PredictionArrived, prediction=prediction("a", memory=memory(3), prediction_id="p-2"))
    known = play.engine.state.predictions.job("a", "standin")
    assert known is not None
    assert known.memory == memory(3)
    assert _asked(play.submit("c", key="a", graph="g", share=Share.ANY)) == []


def test_of_many_jobs_of_a_key_each_larger_peak_is_one_question_also_where_no_answer_follows_it() -> None:
    play = _running(Play())
    found: list[commands.Command] = []
    for number in range(50):
        play.submit(f"later-{number}", key="a", graph="g", share=Share.NEVER)
    _know_no_pairs(play)
    found += _cancel(play, "a", 3 * GIB)
    for number in range(20):
        play.report(events.JobStarted, f"later-{number}")
        found += _cancel(play, f"later-{number}", 3 * GIB)
    assert _asked(found) == ["a"]
    play.report(events.JobStarted, "later-20")
    assert _asked(_cancel(play, "later-20", 4 * GIB)) == ["a"]


@pytest.mark.parametrize("peak_bytes", [0, GIB])
def test_a_peak_that_was_foreseen_asks_nothing(peak_bytes: int) -> None:
    play = _running(Play())
    _cancel(play, "a", peak_bytes)
    assert _asked(play.submit("b", key="a", graph="g", share=Share.ANY)) == []


def test_a_job_that_ran_out_of_memory_is_asked_about_again_before_it_is_tried_again() -> None:
    play = _running(Play())
    found = play.report(events.JobFailed, "a", exit_class="gpu_oom", memory_peak_bytes=3 * GIB)
    kinds = [type(command) for command in found]
    assert kinds.index(commands.RecordOutcome) < kinds.index(commands.RequestPrediction), "it is told first"
    assert play.phase("a") is Phase.PENDING


def test_a_question_that_failed_or_a_scheduler_that_was_away_asks_again() -> None:
    play = _running(Play())
    _cancel(play, "a", 3 * GIB)
    play.engine = _again(play)
    assert _asked(play.submit("b", key="a", graph="g", share=Share.ANY)) == ["a"]
    play.tell(events.PredictionFailed, key="a", device="standin", code="UNAVAILABLE", message="")
    play.engine = _again(play)
    assert _asked(play.submit("c", key="a", graph="g", share=Share.ANY)) == ["a"]


def _again(play: Play) -> SchedulerEngine:
    """An engine from what is stored of another one."""
    return SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)


def test_the_peak_of_an_earlier_attempt_is_not_reported_of_the_next_one() -> None:
    play = _running(Play())
    play.report(events.JobFailed, "a", exit_class="signal", memory_peak_bytes=900)
    play.tell(events.TimerFired, after_ms=60_000)
    play.report(events.JobStarted, "a")
    found = _outcomes(play.report(events.JobFinished, "a", steps_done=10_000, memory_peak_bytes=400))
    assert _reported(found) == [(None, 400, ())]


def test_a_job_over_two_gpus_has_a_part_of_its_batch_on_each_and_teaches_the_least() -> None:
    play = _running(Play(gpus=2), gpus=2, share=Share.NEVER)
    found = _outcomes(play.report(events.JobFinished, "a", steps_done=10_000, memory_peak_bytes=900))
    assert _reported(found) == [(None, 900, ("incomplete_run",))]


def test_steps_that_scatter_are_reported_at_the_end_with_that_doubt() -> None:
    play = _running(Play())
    assert not _step(play, "a", 300, 500, 800, 1_300, 2_000, 3_000)
    found = _outcomes(play.report(events.JobFinished, "a", steps_done=10_000))
    assert [(one.quality_flags, one.step_ms_mean is None) for one in found] == [(("unsteady",), False)]


def test_steps_that_settle_are_reported_without_doubt() -> None:
    found = _step(_running(Play()), "a", 400, 400, 900, *[500] * 9)
    assert [one.quality_flags for one in found] == [()]


def test_windows_in_which_others_used_the_gpu_teach_the_predictor_nothing_of_steps() -> None:
    play = _running(Play())
    assert not _step(play, "a", *[900] * 8, quality_flags=_FOREIGN)
    found = _outcomes(play.report(events.JobFinished, "a", steps_done=10_000, memory_peak_bytes=900))
    assert _reported(found) == [(None, 900, ())]


def test_sound_windows_take_the_place_of_doubtful_ones() -> None:
    play = _running(Play())
    _step(play, "a", *[900] * 4, quality_flags=_FOREIGN, utilization_ratio=0.1)
    found = _step(play, "a", *[500] * 4, utilization_ratio=0.6)
    assert [(one.step_ms_mean, one.utilization_ratio) for one in found] == [(500.0, 0.6)]
    assert not _step(play, "a", *[900] * 4, quality_flags=_FOREIGN)
    assert play.engine.state.jobs["a"].solo_step_ms == 500.0


def test_facts_and_jobs_that_an_older_scheduler_wrote_are_read_without_doubts() -> None:
    play = _running(Play())
    report = events.JobProgressed(at_ms=1, job_id="a", attempt=1, fence=1, steps_done=1)
    written = {name: value for name, value in encode_event(report).items() if name != "quality_flags"}
    assert decode_event(written) == report
    record = play.engine.state.jobs["a"]
    job = encode(JobRecord, record)
    for name in ("solo_utilization_ratio", "solo_windows_step_ms", "attempt_peak_bytes", "told_peak_bytes"):
        del job[name]
    assert decode(JobRecord, job) == record
    stored = encode(StoredPredictions, play.engine.state.predictions.stored())
    del stored["doubted"]
    again = PredictionStore()
    again.load(decode(StoredPredictions, stored))
    assert again.stored() == play.engine.state.predictions.stored()


def _pair(slowdown_ratio: float, upper_ratio: float) -> PairPrediction:
    return PairPrediction(
        victim_key="a", other_key="b", device="d", slowdown_ratio=slowdown_ratio, upper_ratio=upper_ratio
    )


def test_a_pair_measured_while_others_used_the_gpu_is_answered_by_its_prediction_and_promises_no_less() -> None:
    store = PredictionStore()
    store.put_pair(_pair(0.3, 0.8))
    store.observe_pair("a", "b", "d", 0.1, is_doubtful=True)
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert (seen.slowdown_ratio, seen.upper_ratio) == (0.3, 0.8)
    assert (seen.level, seen.in_domain, seen.times_measured) == (Level.GRAPH, True, 0)
    assert store.doubted_among(("a", "b"), "d") == {("a", "b")}
    assert not store.has_sound("a", "b", "d")


@pytest.mark.parametrize("is_predicted_late", [False, True])
def test_a_sure_prediction_of_a_pair_that_doubtful_windows_contradict_is_sure_no_more(is_predicted_late: bool) -> None:
    store = PredictionStore()
    for step in (1, 0) if is_predicted_late else (0, 1):
        if step:
            store.observe_pair("a", "b", "d", 2.0, is_doubtful=True)
        else:
            store.put_pair(_pair(0.05, 0.1))
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert (seen.slowdown_ratio, seen.upper_ratio, seen.times_measured) == (0.05, 2.0, 0)
    assert not is_sure(seen)
    store.observe_pair("a", "b", "d", 0.08)
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert is_sure(seen)


def test_a_pair_known_only_while_others_used_the_gpu_is_nothing_that_may_share_safely() -> None:
    store = PredictionStore()
    store.observe_pair("a", "b", "d", 0.1, is_doubtful=True)
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert (seen.slowdown_ratio, seen.level, seen.in_domain, seen.times_measured) == (0.1, Level.OBSERVED, False, 0)
    store.put_pair(replace(_pair(0.3, 0.8), level=Level.FALLBACK))
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert (seen.slowdown_ratio, seen.upper_ratio, seen.in_domain) == (0.1, 0.8, False)


def test_a_sound_window_of_a_pair_begins_anew_and_doubtful_ones_then_change_nothing() -> None:
    store = PredictionStore()
    store.put_pair(_pair(0.3, 0.8))
    for slowdown_ratio, is_doubtful in ((3.0, True), (2.0, True), (0.1, False), (5.0, True)):
        store.observe_pair("a", "b", "d", slowdown_ratio, is_doubtful=is_doubtful)
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert (seen.slowdown_ratio, seen.upper_ratio, seen.times_measured) == (0.1, 0.1, 1)
    assert store.doubted_among(("a", "b"), "d") == frozenset()


def test_a_restarted_scheduler_still_knows_what_is_doubtful() -> None:
    store, again = PredictionStore(), PredictionStore()
    store.put_pair(_pair(0.3, 0.8))
    store.observe_pair("a", "b", "d", 0.1, is_doubtful=True)
    store.observe_pair("b", "a", "d", 0.2)
    store.observe_solo("a", "d", gpus=1, micro_batch_size=1, steps=1, window_ms=5, is_doubtful=True)
    again.load(store.stored())
    assert again.stored() == store.stored()
    assert again.doubted_among(("a", "b"), "d") == {("a", "b")}
    assert again.solo_step_ms("a", "d", gpus=1, micro_batch_size=1) == 5.0
    assert again.sound_solo_step_ms("a", "d", gpus=1, micro_batch_size=1) is None


def test_a_pair_against_a_doubtful_time_alone_is_doubtful() -> None:
    play = _running(Play())
    _step(play, "a", *[500] * 3, quality_flags=_FOREIGN)
    _running(play, "b")
    _step(play, "a", *[600] * 3)
    predictions = play.engine.state.predictions
    assert predictions.doubted_among(("a", "b"), "standin") == {("a", "b")}
