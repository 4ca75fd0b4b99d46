"""When a policy with an interval is asked again although nothing happens."""

from __future__ import annotations

from scheduler_service.core import events
from scheduler_service.core.commands import Command, WakeAt
from tests.support.engine_play import Play

MINUTE_MS = 60_000
QUEUE_LIMIT_MS = 10 * MINUTE_MS


def wakes(commands: list[Command]) -> list[int]:
    return [one.at_ms for one in commands if isinstance(one, WakeAt)]


def playing(policy: str, **parameters: object) -> Play:
    """One GPU, a job on it, and one that waits."""
    play = Play(policy, parameters={"interval_ms": MINUTE_MS, **parameters})
    play.submit("first")
    play.submit("second")
    return play


def ring(play: Play, at_ms: int) -> list[Command]:
    return play.tell(events.TimerFired, after_ms=at_ms - play.now_ms)


def test_a_policy_that_says_nothing_of_time_is_asked_at_every_multiple() -> None:
    play = playing("drf")
    assert wakes(ring(play, MINUTE_MS)) == [2 * MINUTE_MS]
    assert wakes(ring(play, 2 * MINUTE_MS)) == [3 * MINUTE_MS]


def test_pab_heeds_the_report_of_a_job_that_has_lost_too_much_and_no_other() -> None:
    play, found = playing("pab"), list[list[int]]()
    assert wakes(ring(play, MINUTE_MS)) == []
    assert wakes(play.report(events.JobStarted, "first")) == []
    for steps_done, window_ms in ((10, 10_000), (20, 10_000), (30, 10_000), (40, 50_000)):
        window = {"steps_done": steps_done, "window_steps": 10, "window_ms": window_ms}
        found.append(wakes(play.report(events.JobProgressed, "first", after_ms=window_ms, **window)))
    assert play.engine.state.lost_ratios["first"] > 0.5
    assert found == [[], [], [], [-(-play.now_ms // MINUTE_MS) * MINUTE_MS]]


def test_tiresias_is_asked_when_a_job_has_earned_its_start_and_when_one_leaves_its_queue() -> None:
    play = playing("tiresias", queue_limit_gpu_ms=QUEUE_LIMIT_MS, run_min_ms=150_000)
    started_at_ms = play.engine.state.jobs["first"].times.started_at_ms
    assert wakes(ring(play, MINUTE_MS)) == [3 * MINUTE_MS]
    assert 2 * MINUTE_MS < started_at_ms + 150_000 <= 3 * MINUTE_MS
    [at_ms] = wakes(ring(play, 3 * MINUTE_MS))
    assert at_ms - MINUTE_MS < started_at_ms + QUEUE_LIMIT_MS <= at_ms
    assert [type(one).__name__ for one in ring(play, at_ms)][:1] == ["StopJob"]


def test_tiresias_heeds_no_report() -> None:
    play = playing("tiresias", run_min_ms=150_000)
    assert wakes(ring(play, MINUTE_MS)) == [3 * MINUTE_MS]
    assert wakes(play.report(events.JobStarted, "first")) == []
    assert wakes(play.report(events.JobProgressed, "first", steps_done=5, window_steps=5, window_ms=500)) == []


def test_tiresias_is_not_asked_while_no_job_waits() -> None:
    play = Play("tiresias")
    play.submit("only")
    assert wakes(ring(play, MINUTE_MS)) == []


def test_tiresias_that_promotes_is_asked_at_every_multiple() -> None:
    play = playing("tiresias", promote_ratio=2.0)
    assert wakes(ring(play, MINUTE_MS)) == [2 * MINUTE_MS]
