"""What was measured of one pair makes the engine ask again about the others: bounded, one question at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.shared_ways import place_name
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.predictions.pair_refreshes import changed_pairs
from scheduler_service.core.predictions.stored_predictions import PairRefresh
from scheduler_service.core.records import Share
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import all_pairs, pair, prediction

REFRESH_MS = 10_000
DEVICE = "standin"


def refreshes(found: Iterable[commands.Command]) -> list[commands.RefreshPairs]:
    return [command for command in found if isinstance(command, commands.RefreshPairs)]


def submit(play: Play, name: str, **changes: Any) -> list[commands.Command]:
    """Hands a job in and answers both questions about it."""
    found = play.submit(name, key=name, graph="g", steps_total=100_000, **{"share": Share.ANY, **changes})
    found += play.tell(events.PredictionArrived, prediction=prediction(name))
    keys = sorted(play.engine.state.living_keys)
    found += play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(keys)))
    return found


def progress(play: Play, name: str, step_ms: int) -> list[commands.Command]:
    done = play.engine.state.jobs[name].steps_done + 10
    return play.report(
        events.JobProgressed,
        name,
        steps_done=done,
        window_steps=10,
        window_ms=10 * step_ms,
        after_ms=10 * step_ms + 100,
    )


@pytest.fixture(name="play")
def _play() -> Play:
    """Jobs a and b share a GPU, c waits; a is known alone."""
    play = Play("horus", pair_refresh_ms=REFRESH_MS)
    submit(play, "a")
    play.report(events.JobStarted, "a")
    for _ in range(3):
        progress(play, "a", 100)
    submit(play, "b")
    play.report(events.JobStarted, "b")
    submit(play, "c", memory_request_bytes=1 << 60)
    return play


def test_a_measured_pair_makes_the_pairs_of_running_and_waiting_jobs_stale(play: Play) -> None:
    progress(play, "b", 100)
    (question,) = refreshes(progress(play, "a", 200))
    assert question.device == DEVICE
    assert {(one.victim_key, one.other_key) for one in question.known} == {
        (one, two) for one in "abc" for two in "abc" if (one == "c") != (two == "c")
    }
    assert question.observed == (("a", "b", 1.0),)
    assert {member.key for member in question.members} == {"a", "b", "c"}


def test_one_question_is_asked_at_a_time_and_not_faster_than_the_interval(play: Play) -> None:
    assert refreshes(progress(play, "a", 200))
    assert not refreshes(progress(play, "a", 300)), "an answer is awaited"
    play.tell(events.PairsRefreshed, device=DEVICE, after_ms=0)
    assert not refreshes(progress(play, "a", 400)), "the interval is not over"
    assert refreshes(progress(play, "a", 900))


def test_an_answer_ends_the_question_that_was_asked_where_the_way_of_sharing_was_once_one_of_several(
    play: Play,
) -> None:
    predictions = play.engine.state.predictions
    predictions.refreshes[place_name(DEVICE, DeviceSharing.MPS)] = PairRefresh()
    assert refreshes(progress(play, "a", 200))
    play.tell(events.PairsRefreshed, device=DEVICE, sharing=DeviceSharing.MPS)
    assert not any(one.is_asked for one in predictions.refreshes.values())
    assert refreshes(progress(play, "a", 900) + play.tell(events.TimerFired, after_ms=REFRESH_MS))


def test_what_moves_by_nothing_asks_nothing(play: Play) -> None:
    assert refreshes(progress(play, "a", 200))
    play.tell(events.PairsRefreshed, device=DEVICE)
    assert not any(refreshes(progress(play, "a", 200)) for _ in range(20))


def test_without_a_waiting_job_no_pair_is_asked_until_one_comes() -> None:
    play = Play("horus", pair_refresh_ms=REFRESH_MS)
    for name in ("a", "b"):
        submit(play, name)
        play.report(events.JobStarted, name)
        progress(play, name, 100)
        progress(play, name, 100)
    assert not refreshes(progress(play, "a", 300))
    assert refreshes(submit(play, "c", memory_request_bytes=1 << 60))


def test_the_next_decision_uses_the_new_answer(play: Play) -> None:
    progress(play, "a", 200)
    changed = pair("c", "a", 0.9, times_measured=3)
    play.tell(events.PairsRefreshed, device=DEVICE, pairs=(changed,))
    assert play.engine.state.predictions.pair("c", "a", DEVICE) == changed


def test_a_failed_question_is_asked_again_after_the_interval(play: Play) -> None:
    assert refreshes(progress(play, "a", 200))
    assert not refreshes(play.tell(events.PairsRefreshed, device=DEVICE, code="UNAVAILABLE"))
    assert refreshes(play.tell(events.TimerFired, after_ms=REFRESH_MS))


def test_a_crash_asks_again_and_an_answer_about_forgotten_keys_is_dropped(play: Play) -> None:
    assert refreshes(progress(play, "a", 200))
    restored = SchedulerEngine.restore(
        json.loads(json.dumps(play.engine.snapshot())), make_policy=make_policy, pair_refresh_ms=REFRESH_MS
    )
    assert len(refreshes(restored.reissue())) == 1
    restored.handle(events.PairsRefreshed(at_ms=play.now_ms, device=DEVICE, pairs=(pair("gone", "a"),)))
    assert restored.state.predictions.pair("gone", "a", DEVICE) is None
    assert not refreshes(restored.reissue())


def test_only_what_an_answer_changes_becomes_a_fact() -> None:
    known = [pair("a", "b", 0.2), pair("b", "a", 0.2), pair("a", "c", 0.2), pair("c", "a", 0.2)]
    answered = {
        ("a", "b"): pair("a", "b", 0.2001),
        ("b", "a"): pair("b", "a", 0.5),
        ("a", "c"): pair("a", "c", 0.2, times_measured=1),
        ("b", "b"): pair("b", "b", 0.5),
    }
    assert list(changed_pairs(known, answered)) == [answered["b", "a"], answered["a", "c"]]
