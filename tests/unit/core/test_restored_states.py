"""A state that was restored from a backup knows less than what runs."""

from __future__ import annotations

from scheduler_service.core import events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Phase
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play


def test_after_a_restore_nothing_starts_until_what_the_backup_does_not_know_has_ended() -> None:
    """Found by the swarm: a later attempt ran on a node that came back a moment after the first one."""
    play = Play()
    play.submit("running")
    play.submit("waiting")
    play.tell(
        events.IncarnationBegan,
        incarnation_id="b",
        parent_id="a",
        next_fence=1_000,
        last_job_number=10,
        settled_at_ms=play.now_ms + 60_000,
    )
    assert (play.phase("waiting"), play.code("waiting")) == (Phase.PENDING, "RESTORED")
    play.report(events.JobFailed, "running", exit_class="lost")
    assert (play.phase("running"), play.code("running")) == (Phase.PENDING, "RESTORED")
    restored = SchedulerEngine.restore(play.engine.snapshot(), make_policy=make_policy)
    assert restored.state.settled_at_ms == play.engine.state.settled_at_ms
    play.tell(events.TimerFired, after_ms=61_000)
    assert Phase.STARTING in (play.phase("running"), play.phase("waiting"))
