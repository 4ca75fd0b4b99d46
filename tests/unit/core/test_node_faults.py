"""A node that cannot start anything costs no job: it is asked again, or another one is."""

from __future__ import annotations

from scheduler_service.core import events
from scheduler_service.core.lifecycle.attempts import BACKOFF_MAX_MS, NODE_FAULT_REFUSALS_MAX
from scheduler_service.core.records import Phase
from tests.support.engine_play import Play


def test_a_node_that_cannot_start_anything_costs_no_job_within_a_day() -> None:
    play = Play()
    play.submit()
    for _ in range(NODE_FAULT_REFUSALS_MAX - 1):
        play.report(events.LaunchRefused, code="NODE_FAILURE", message="the disk is full")
        assert play.code() == "LAUNCH_REFUSED"
        play.tell(events.TimerFired, after_ms=BACKOFF_MAX_MS)
    assert play.engine.state.now_ms > 24 * 3_600_000
    record = play.engine.state.jobs["j0"]
    assert (record.phase, record.counts.restarts) == (Phase.STARTING, 0)
    play.report(events.LaunchRefused, code="NODE_FAILURE", message="the disk is full")
    assert play.engine.state.jobs["j0"].reason.code == "LAUNCH_REFUSED_FOR_GOOD"
