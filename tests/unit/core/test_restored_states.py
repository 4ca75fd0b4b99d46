"""A state that was restored from a backup knows less than what runs."""

from __future__ import annotations

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Phase
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import node


def restore(play: Play) -> None:
    play.tell(
        events.IncarnationBegan,
        incarnation_id="b",
        parent_id="a",
        next_fence=1_000,
        last_job_number=10,
        settled_at_ms=play.now_ms + 60_000,
    )


def test_after_a_restore_nothing_starts_until_what_the_backup_does_not_know_has_ended() -> None:
    """Found by the swarm: a later attempt ran on a node that came back a moment after the first one."""
    play = Play()
    play.submit("running")
    play.submit("waiting")
    restore(play)
    assert (play.phase("waiting"), play.code("waiting")) == (Phase.PENDING, "RESTORED")
    play.report(events.JobFailed, "running", exit_class="lost")
    assert (play.phase("running"), play.code("running")) == (Phase.PENDING, "RESTORED")
    restored = SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)
    assert restored.state.settled_at_ms == play.engine.state.settled_at_ms
    play.tell(events.TimerFired, after_ms=61_000)
    assert Phase.STARTING in (play.phase("running"), play.phase("waiting"))


def test_a_job_that_is_submitted_after_a_restore_waits_as_well() -> None:
    """Swarm seed 109095: the copy of a node's agent joined, and did not know what the node ran."""
    play = Play()
    restore(play)
    play.submit()
    assert (play.phase(), play.code()) == (Phase.PENDING, "RESTORED")
    play.tell(events.TimerFired, after_ms=61_000)
    assert play.phase() is Phase.STARTING


def test_a_start_that_a_backup_believes_under_way_is_not_ordered_again_before_its_later_attempts_have_ended() -> None:
    """Swarm seed 5: the lost state had given the attempt up, and a later one ran on another node."""
    play = Play()
    play.submit()
    assert play.phase() is Phase.STARTING
    restore(play)
    assert not any(isinstance(one, commands.LaunchJob) for one in play.tell(events.NodeJoined, node=node("n0")))
    assert (play.phase(), play.code()) == (Phase.PENDING, "RESTORED")
    started = play.tell(events.TimerFired, after_ms=61_000)
    assert [one.fence for one in started if isinstance(one, commands.LaunchJob)] == [1_000]


def test_what_was_started_after_a_restore_is_ordered_again_where_its_node_does_not_know_it_yet() -> None:
    """Swarm seed 41424: it was given up, and had begun."""
    play = Play()
    restore(play)
    play.submit()
    play.tell(events.TimerFired, after_ms=61_000)
    assert play.phase() is Phase.STARTING
    again = play.tell(events.NodeJoined, node=node("n0"))
    assert [one.attempt for one in again if isinstance(one, commands.LaunchJob)] == [1]
