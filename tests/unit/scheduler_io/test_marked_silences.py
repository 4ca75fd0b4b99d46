"""A scheduler that finds a marker at its start: what it says is stored, and a policy of cotenant's own asked again."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.silence_marker import SilenceMarker
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.commands import running_scheduler as running_scheduler_module
from scheduler_service.core.events import Event, JobSubmitted, NodeJoined, PolicyChosen
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.core.records import JobRequest
from tests.support.live_scheduler import running_scheduler
from tests.support.scheduler_process import SchedulerClient, wait_until
from tests.support.scheduling import node


def stored(state_dir: Path) -> list[Event]:
    with closing(SqliteEventLog(state_dir)) as log:
        return [one.event for one in log.read_from(1)]


@pytest.mark.parametrize("is_asked_again", [True, False])
def test_what_a_marker_says_is_stored_and_a_policy_that_was_only_slow_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked_again: bool
) -> None:
    monkeypatch.setattr(running_scheduler_module, "AGAIN_S", 0.05 if is_asked_again else 600.0)
    state_dir = tmp_path / "state"
    with closing(SqliteEventLog(state_dir)) as log:
        at_ms = time.time_ns() // 1_000_000
        facts = [
            PolicyChosen(at_ms=at_ms, policy="fifo"),
            NodeJoined(at_ms=at_ms, node=node("n0", 1)),
            JobSubmitted(at_ms=at_ms, request=JobRequest(job_id="job-1")),
        ]
        log.append([LogRecord(event=fact) for fact in facts])
        silence = PolicySilenced(at_ms=0, sequence=3, answers=0, words="policy fifo did not answer")
        SilenceMarker(state_dir, log.identity.state_id).keep(silence)
    with running_scheduler(state_dir, policy="fifo") as address, SchedulerClient(address) as client:
        wait_until(
            lambda: (client.get("job-1").reason.code == "POLICY_SILENT") is not is_asked_again,
            "the policy is asked again" if is_asked_again else "the policy is not asked",
        )
    silences = [event for event in stored(state_dir) if isinstance(event, PolicySilenced)]
    assert [(event.sequence, event.words) for event in silences] == [(3, "policy fifo did not answer")]
    chosen = [event for event in stored(state_dir)[3:] if isinstance(event, PolicyChosen)]
    assert [event.policy for event in chosen] == ["fifo"] * is_asked_again
    assert not (state_dir / "silent_policy.json").exists()
