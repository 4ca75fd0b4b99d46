"""The later job of a broken trial leaves: paused where the other one ends soon, else stopped."""

from __future__ import annotations

from scheduler_service.core import commands, events
from scheduler_service.core.records import Phase
from tests.support.scheduling import node
from tests.unit.core.test_trials import TrialPlay, stopped


def one_slow_window(*, steps_total: int, migration_cost_ms: int) -> TrialPlay:
    """Job `b` has come next to `a` on a node that can pause, and `a` took twice as long for one window."""
    play = TrialPlay()
    play.tell(events.NodeJoined, node=node("n0", 1, enforcements=("cgroup_freezer",)))
    play.unsure("a", max_slowdown_ratio=0.5, steps_total=steps_total)
    play.measured_alone("a")
    play.unsure("b", key="key-a", max_slowdown_ratio=0.5, migration_cost_ms=migration_cost_ms)
    play.report(events.JobStarted, "b")
    play.window("a", 200)
    return play


def test_where_the_other_job_is_about_to_end_the_later_one_is_paused_and_goes_on_alone() -> None:
    play = one_slow_window(steps_total=300, migration_cost_ms=10_000)
    orders = play.window("a", 200)
    assert [type(order) for order in orders if isinstance(order, commands.PauseJob | commands.StopJob)] == [
        commands.PauseJob
    ]
    play.report(events.AttemptPaused, "b")
    assert play.phase("b") is Phase.PAUSED
    orders = play.report(events.JobFinished, "a", steps_done=300)
    assert [order.job_id for order in orders if isinstance(order, commands.ResumeJob)] == ["b"]


def test_where_the_other_job_goes_on_for_more_than_40_s_the_later_one_is_stopped_at_once() -> None:
    play = one_slow_window(steps_total=470, migration_cost_ms=20_000)
    orders = play.window("a", 200)
    assert play.engine.state.jobs["a"].steps_done == 60, "410 steps of 100 ms are left"
    assert [type(order) for order in orders if isinstance(order, commands.PauseJob | commands.StopJob)] == [
        commands.StopJob
    ]


def test_a_paused_job_is_stopped_where_the_other_one_does_not_end_in_time() -> None:
    play = one_slow_window(steps_total=300, migration_cost_ms=10_000)
    play.window("a", 200)
    play.report(events.AttemptPaused, "b")
    assert stopped(play.tell(events.TimerFired, after_ms=45_000)) == ["b"]


def test_a_job_that_starts_quickly_does_not_stand_still_for_the_end_of_another() -> None:
    play = one_slow_window(steps_total=300, migration_cost_ms=2_000)
    assert stopped(play.window("a", 200)) == ["b"]


def test_where_nodes_report_often_a_few_short_windows_break_no_consent() -> None:
    play = TrialPlay(report_interval_ms=500)
    play.unsure("a", max_slowdown_ratio=0.5)
    play.measured_alone("a")
    play.unsure("b", key="key-a", max_slowdown_ratio=0.5)
    play.report(events.JobStarted, "b")
    play.window("b", 100)
    left = [bool(stopped(play.window("a", 200))) for _ in range(8)]
    assert left == [False] * 7 + [True]
