"""Facts that are learned together are decided upon together, once, whatever becomes of the last of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from scheduler_service.adapters.storage.recovery import apply_event
from scheduler_service.core import events
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.commands import Command, LaunchJob, WakeAt
from scheduler_service.core.decisions import Decision, Hold
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Reason
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import job, node

MINUTE_MS = 60_000


class NotedRounds:
    """Lets every job wait, and notes which waited whenever it was asked."""

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        self.rounds.append([one.request.job_id for one in view.pending])
        return [Hold(job_id=job_id, reason=Reason(code="HELD")) for job_id in self.rounds[-1]]


@pytest.fixture
def asked() -> NotedRounds:
    return NotedRounds()


@pytest.fixture
def engine(asked: NotedRounds) -> SchedulerEngine:
    def make(name: str, parameters: Mapping[str, object]) -> Policy:
        return asked

    made = SchedulerEngine(make_policy=make, policy="asked")
    made.handle(events.NodeJoined(at_ms=0, node=node()))
    asked.rounds.clear()
    return made


def submitted(name: str, at_ms: int = 1, *, is_followed: bool = False) -> events.JobSubmitted:
    return events.JobSubmitted(at_ms=at_ms, is_followed=is_followed, request=job(name))


def playing(policy: str = "fifo", gpus: int = 2, **parameters: object) -> Play:
    return Play(policy, gpus=gpus, parameters=parameters)


def launched(commands: Sequence[Command]) -> list[str]:
    return [one.job_id for one in commands if isinstance(one, LaunchJob)]


def wakes(commands: Sequence[Command]) -> list[int]:
    return [one.at_ms for one in commands if isinstance(one, WakeAt)]


def test_what_others_follow_is_known_at_once_and_decided_upon_with_the_last(
    engine: SchedulerEngine, asked: NotedRounds
) -> None:
    for name in ("a", "b"):
        engine.handle(submitted(name, is_followed=True))
    assert list(engine.state.jobs) == ["a", "b"]
    assert (asked.rounds, engine.state.decided_at_ms) == ([], 0)
    engine.handle(submitted("c"))
    assert asked.rounds == [["a", "b", "c"]]
    engine.handle(submitted("d"))
    assert asked.rounds[1:] == [["a", "b", "c", "d"]]


def test_a_last_fact_that_changes_nothing_decides_upon_those_before_it(
    engine: SchedulerEngine, asked: NotedRounds
) -> None:
    engine.handle(submitted("a", is_followed=True))
    engine.handle(events.JobCancelled(at_ms=2, job_id="nobody"))
    assert asked.rounds == [["a"]]
    engine.handle(events.JobCancelled(at_ms=3, job_id="nobody"))
    assert len(asked.rounds) == 1


@pytest.mark.parametrize("error", [None, KeyError("a bug of ours")])
def test_a_last_fact_that_cannot_be_applied_loses_no_decision(
    engine: SchedulerEngine, asked: NotedRounds, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    engine.handle(submitted("a", is_followed=True))
    if error is not None:
        monkeypatch.setattr(SchedulerEngine, "_apply", lambda *_: (_ for _ in ()).throw(error))
    # Without an error of ours the same job a second time is what cannot be.
    apply_event(engine, submitted("a"))
    assert asked.rounds == [["a"]]
    apply_event(engine, submitted("a"))
    assert len(asked.rounds) == 1


def test_a_fact_in_the_middle_that_cannot_be_applied_decides_nothing_early(
    engine: SchedulerEngine, asked: NotedRounds
) -> None:
    engine.handle(submitted("a", is_followed=True))
    assert apply_event(engine, submitted("a", is_followed=True)) == []
    assert asked.rounds == []
    apply_event(engine, submitted("b"))
    assert asked.rounds == [["a", "b"]]


def test_a_put_off_decision_that_breaks_ends_neither_the_loop_nor_a_replay(
    engine: SchedulerEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.handle(submitted("a", is_followed=True))
    monkeypatch.setattr(SchedulerEngine, "_decide", lambda *_: (_ for _ in ()).throw(KeyError("a bug of ours")))
    assert apply_event(engine, submitted("a")) == []
    assert [line.message for line in caplog.records] == ["impossible_event", "broken_decision"]
    assert engine.decide_put_off() == []


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias", "pab"])
def test_an_engine_that_is_restored_between_two_facts_goes_on_like_the_one_that_was_saved(policy: str) -> None:
    play = playing(policy)
    play.submit("a", steps_total=1_000)
    play.tell(events.JobSubmitted, request=job("b"), is_followed=True)
    text = json.dumps(play.engine.snapshot())
    copy = SchedulerEngine.restore(json.loads(text), make_policy=make_policy)
    # It changes nothing itself: what it is decided upon with is all in the snapshot.
    last = events.JobCancelled(at_ms=play.now_ms, job_id="nobody")
    commands = play.engine.handle(last)
    assert copy.handle(last) == commands
    assert launched(commands) == ["b"]
    assert copy.snapshot() == play.engine.snapshot()


def test_a_snapshot_of_an_older_version_has_put_nothing_off() -> None:
    play = playing()
    play.tell(events.JobSubmitted, request=job("a"), is_followed=True)
    stored: dict[str, Any] = json.loads(json.dumps(play.engine.snapshot()))
    assert stored["state"].pop("put_off") is not None
    assert SchedulerEngine.restore(stored, make_policy=make_policy).state.put_off is None


def test_the_word_is_stored_where_it_is_true_and_an_older_event_is_followed_by_none() -> None:
    last, other = submitted("a"), submitted("a", is_followed=True)
    assert "is_followed" not in encode_event(last)
    assert decode_event(json.loads(json.dumps(encode_event(last)))) == last
    assert encode_event(other) == {**encode_event(last), "is_followed": True}
    assert decode_event(json.loads(json.dumps(encode_event(other)))) == other


def test_a_policy_with_an_interval_is_asked_again_after_a_group_as_after_each_of_its_facts() -> None:
    """What one fact of a group is heeded for is not forgotten over the others."""
    found = {}
    for together in (False, True):
        play = Play("tiresias", parameters={"interval_ms": MINUTE_MS, "run_min_ms": 150_000})
        play.submit("first", steps_total=10_000)
        play.submit("second")
        play.tell(events.TimerFired, after_ms=MINUTE_MS - play.now_ms)
        told = play.tell(events.JobSubmitted, request=job("third"), is_followed=together)
        told += play.report(events.JobStarted, "first")
        found[together] = wakes(told)
    assert found[True] == found[False] == [2 * MINUTE_MS]


def test_timers_that_order_nothing_are_one_look_and_any_other_fact_among_them_another() -> None:
    at_ms = {}
    for kind in (events.TimerFired, events.JobCancelled):
        play = Play("tiresias", parameters={"interval_ms": MINUTE_MS, "run_min_ms": 150_000})
        play.submit("first", steps_total=10_000)
        play.submit("second")
        values = {"job_id": "nobody"} if kind is events.JobCancelled else {}
        play.tell(kind, after_ms=MINUTE_MS - play.now_ms, is_followed=True, **values)
        at_ms[kind] = wakes(play.tell(events.TimerFired, after_ms=0))
    # At sixteen GPU-hours "first" leaves its queue; that it may be stopped before helps none that comes after it.
    assert at_ms == {events.TimerFired: [(16 * 60 + 1) * MINUTE_MS], events.JobCancelled: [2 * MINUTE_MS]}
