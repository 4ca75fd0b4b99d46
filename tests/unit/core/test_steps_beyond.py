"""A job whose log counts more than its stated steps stands at the last but one of them, and still goes on."""

from __future__ import annotations

from scheduler_service.core import events
from scheduler_service.core.records import Phase
from tests.unit.core.test_queue_changes import play, submit


def test_a_job_whose_log_counts_beyond_its_stated_steps_does_not_stall_while_it_goes_on() -> None:
    scene = play(stall_ms=600_000)
    submit(scene, "j0", restarts_stalled=True)
    scene.report(events.JobStarted)
    for _ in range(30):
        scene.report(events.JobProgressed, steps_done=39, window_steps=2, window_ms=50_000, checkpoint_step=1)
        scene.tell(events.TimerFired, after_ms=60_000)
    assert scene.phase() is Phase.RUNNING
    assert not scene.engine.state.jobs["j0"].measured.stalled_since_ms
    for _ in range(30):
        scene.report(events.JobProgressed, steps_done=39, checkpoint_step=1)
        scene.tell(events.TimerFired, after_ms=60_000)
    assert scene.phase() is Phase.STOPPING
