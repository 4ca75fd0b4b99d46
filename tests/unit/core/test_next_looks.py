"""When a policy with an interval is asked again although nothing happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler_service.core import events, queue_events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.commands import Command, WakeAt
from scheduler_service.core.decisions import Decision
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling.next_looks import find_looks
from scheduler_service.core.predictions.pair_store import PairStore
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import Phase, Share
from scheduler_service.policies.pab import PerformanceAwareBinPacking
from scheduler_service.policies.tiresias import Tiresias
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


def test_tiresias_is_asked_when_a_job_leaves_its_queue() -> None:
    parameters = {"queue_limit_gpu_ms": QUEUE_LIMIT_MS}
    play = Play("tiresias", parameters=parameters, nodes_per_job_max=0)
    for name in ("first", "second"):
        play.submit(name)
    started_at_ms = play.engine.state.jobs["first"].times.started_at_ms
    [at_ms] = wakes(ring(play, MINUTE_MS))
    assert at_ms - MINUTE_MS < started_at_ms + QUEUE_LIMIT_MS <= at_ms
    assert [type(one).__name__ for one in ring(play, at_ms)][:1] == ["StopJob"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the instants at which tiresias is asked from now on."""
    asks, decide = list[int](), Tiresias.decide

    def note(self: Tiresias, view: SchedulingView) -> Sequence[Decision]:
        asks.append(view.now_ms)
        return decide(self, view)

    monkeypatch.setattr(Tiresias, "decide", note)
    return asks


def held_back() -> Play:
    """One GPU, a job on it, and one that came before it and was held back until now."""
    play = Play("tiresias", parameters={"run_min_ms": 150_000}, nodes_per_job_max=0)
    play.submit("early")
    play.tell(queue_events.JobHeld, job_id="early", stops_running=True)
    play.report(events.JobStopped, "early", exit_class="checkpointed")
    play.submit("late")
    assert play.phase("late") is Phase.STARTING
    return play


def test_tiresias_is_asked_when_a_job_that_comes_later_has_earned_its_start() -> None:
    play = held_back()
    play.tell(queue_events.JobReleased, job_id="early")
    [at_ms] = wakes(ring(play, MINUTE_MS))
    assert at_ms - MINUTE_MS < play.engine.state.jobs["late"].times.started_at_ms + 150_000 <= at_ms
    assert [type(one).__name__ for one in ring(play, at_ms)][:1] == ["StopJob"]


@pytest.mark.parametrize(
    ("changes", "options"),
    [({"cpu_cores": 1.0}, {}), ({}, {"nodes_per_job_max": 1}), ({"terms": QueueTerms(priority=1)}, {})],
)
def test_tiresias_is_asked_when_a_timer_rings_after_a_fact_where_gpus_are_not_alike_for_those_that_wait(
    changes: dict[str, Any], options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = counted(monkeypatch)
    play = Play("tiresias", parameters={"run_min_ms": 150_000}, **{"nodes_per_job_max": 0, **options})
    for name, more in (("first", {}), ("second", {}), ("third", changes)):
        play.submit(name, **more)
    asks.clear()
    ring(play, MINUTE_MS)
    assert asks


def test_tiresias_is_not_asked_when_a_timer_rings_after_a_fact_where_its_answer_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks, play = counted(monkeypatch), Play("tiresias", nodes_per_job_max=0, gpus=2)
    for number in range(4):
        play.submit(f"j{number}")
    assert len(asks) == 4
    assert len(wakes(ring(play, MINUTE_MS))) == 1
    assert len(asks) == 4
    play.report(events.JobFinished, "j0", steps_done=1)
    assert play.phase("j2") is Phase.STARTING
    assert len(asks) == 5


def test_a_timer_upon_which_an_answer_stands_asks_once_when_to_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, find = list[int](), Tiresias.next_look_ms
    play = Play("tiresias", nodes_per_job_max=0, gpus=2)
    for number in range(4):
        play.submit(f"j{number}")

    def count(self: Tiresias, view: SchedulingView) -> int | None:
        looks.append(view.now_ms)
        return find(self, view)

    monkeypatch.setattr(Tiresias, "next_look_ms", count)
    assert len(wakes(ring(play, MINUTE_MS))) == 1
    assert len(looks) == 1
    assert looks[0] < MINUTE_MS


def test_tiresias_is_asked_when_a_timer_rings_after_a_fact_that_it_heeds_and_was_not_asked_upon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks, play = counted(monkeypatch), Play("tiresias", nodes_per_job_max=0)
    for number in range(2):
        play.submit(f"j{number}")
    asks.clear()
    terms: dict[str, Any] = {
        "priority": 0,
        "share": Share.NEVER,
        "max_slowdown_ratio": 0.0,
        "time_limit_ms": 10 * MINUTE_MS,
    }
    play.tell(queue_events.JobAltered, job_id="j0", **terms)
    ring(play, MINUTE_MS)
    assert len(asks) == 1


def test_tiresias_heeds_no_report() -> None:
    play = playing("tiresias", run_min_ms=150_000)
    ring(play, MINUTE_MS)
    assert wakes(play.report(events.JobStarted, "first")) == []
    assert wakes(play.report(events.JobProgressed, "first", steps_done=5, window_steps=5, window_ms=500)) == []


def test_pab_is_not_asked_again_because_a_job_came_while_none_has_lost_too_much() -> None:
    play = Play("pab", parameters={"interval_ms": MINUTE_MS})
    assert [wakes(play.submit(name)) for name in ("first", "second")] == [[], []]


def test_a_policy_that_does_not_say_that_it_settles_is_asked_again_after_every_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(PerformanceAwareBinPacking, "settles")
    play = Play("pab", parameters={"interval_ms": MINUTE_MS})
    assert wakes(play.submit("first")) == [MINUTE_MS]
    assert wakes(ring(play, MINUTE_MS)) == []
    assert wakes(play.report(events.JobStarted, "first")) == []


def look_nowhere(*, explain: bool) -> SchedulingView:
    raise AssertionError(f"nothing was decided that could stand, and it was looked at (explain={explain})")


def looks_after_a_report_that_changed(play: Play, *, all_changes: int, news: int) -> Sequence[int]:
    """Return when a policy is asked after a report of a running job by which measured averages changed so often."""
    state, changes = play.engine.state, play.engine.state.predictions.changes
    report = events.JobProgressed(at_ms=play.now_ms, job_id="first", attempt=1, fence=1, steps_done=1)
    changes_before = changes.count - all_changes, changes.news_count - news
    policy = PerformanceAwareBinPacking(interval_ms=MINUTE_MS)
    return find_looks(policy, report, EventEffects(), state, look_nowhere, changes_before=changes_before)


def test_what_a_timer_found_of_the_next_look_holds_unless_another_decision_was_due_after_all() -> None:
    play = playing("tiresias")
    state, changes = play.engine.state, play.engine.state.predictions.changes
    before, event = (changes.count, changes.news_count), events.TimerFired(at_ms=play.now_ms)
    policy = Tiresias(interval_ms=MINUTE_MS)
    for look_ms, found in ((4.5 * MINUTE_MS, [5 * MINUTE_MS]), (math.inf, [])):
        known = EventEffects(look_ms=look_ms)
        assert list(find_looks(policy, event, known, state, look_nowhere, changes_before=before)) == found
        known.is_decision_due = True
        with pytest.raises(AssertionError, match="looked at"):
            find_looks(policy, event, known, state, look_nowhere, changes_before=before)


def test_a_policy_that_settles_hears_of_news_while_a_job_waits_and_any_other_of_every_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, alone = playing("pab"), Play("pab", parameters={"interval_ms": MINUTE_MS})
    alone.submit("first")
    again = [MINUTE_MS]
    assert list(looks_after_a_report_that_changed(waiting, all_changes=1, news=1)) == again
    assert list(looks_after_a_report_that_changed(waiting, all_changes=1, news=0)) == []
    assert list(looks_after_a_report_that_changed(alone, all_changes=1, news=1)) == []
    monkeypatch.delattr(PerformanceAwareBinPacking, "settles")
    for play in (waiting, alone):
        assert list(looks_after_a_report_that_changed(play, all_changes=1, news=0)) == again
        assert list(looks_after_a_report_that_changed(play, all_changes=0, news=0)) == []


def test_a_measured_average_that_moves_by_less_than_a_hundredth_is_no_news() -> None:
    pairs, found = PairStore(), list[tuple[int, int]]()
    # The past weighs 0.9 in the average: the fourth window moves it by 0.009, the last by 0.011.
    for slowdown_ratio in (0.30, 0.30, 0.30, 0.39, 0.419):
        pairs.observe_pair("victim", "other", "a100", slowdown_ratio)
        found.append((pairs.changes.count, pairs.changes.news_count))
    assert found == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]


def test_the_first_sound_window_of_a_pair_is_news_though_it_says_the_same() -> None:
    pairs = PairStore()
    for is_doubtful in (True, True, False):
        pairs.observe_pair("victim", "other", "a100", 0.3, is_doubtful=is_doubtful)
    assert pairs.changes.news_count == 2


def test_tiresias_is_not_asked_while_no_job_waits() -> None:
    play = Play("tiresias")
    play.submit("only")
    assert wakes(ring(play, MINUTE_MS)) == []


def test_tiresias_that_promotes_is_asked_at_every_multiple() -> None:
    play = playing("tiresias", promote_ratio=2.0)
    assert wakes(ring(play, MINUTE_MS)) == [2 * MINUTE_MS]
