"""What people read about a job is what the engine and the agent know about it."""

from __future__ import annotations

import pytest

from scheduler_service.core import events
from scheduler_service.grpc_api.translate_jobs import job_message
from tests.support.engine_play import Play

REFUSAL = "COMMAND_NOT_ALLOWED: 'train.sh' is not on the allow-list (the node's owner adds one: --allow-file)"


@pytest.mark.parametrize(("refusals", "code"), [(1, "LAUNCH_REFUSED"), (5, "LAUNCH_REFUSED_FOR_GOOD")])
def test_whom_an_agent_has_refused_reads_its_words(refusals: int, code: str) -> None:
    play = Play()
    play.submit()
    for _ in range(refusals):
        play.tell(events.TimerFired, after_ms=600_000)
        words = REFUSAL.partition(": ")[2]
        play.report(events.LaunchRefused, code="COMMAND_NOT_ALLOWED", message=words)
    job = play.engine.state.jobs["j0"]
    reason = job_message(play.engine.state, job).reason
    assert reason.code == code
    assert reason.message.endswith(f" It said: {REFUSAL}")
    assert code == "LAUNCH_REFUSED" or job.history[-1].message == REFUSAL
