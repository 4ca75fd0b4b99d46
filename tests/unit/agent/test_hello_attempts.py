"""What a Hello reports of attempts whose files change while it is written."""

from __future__ import annotations

from pathlib import Path

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.protocol import status_to_message
from cotenant_agent.storage.durable_files import write_json
from cotenant_agent.storage.state_directory import AttemptDirectory


def test_an_end_that_was_not_read_yet_is_not_reported_as_a_loss(tmp_path: Path) -> None:
    """Its exit record came between the agent's look at the attempts and the Hello: a finished job ran once more."""
    directory = AttemptDirectory(tmp_path / "job-1.1")
    directory.path.mkdir()
    spec: dict[str, object] = {"job_id": "job-1", "attempt": 1, "fence": 1}
    attempt = Attempt(directory, spec, tmp_path / "checkpoints", tmp_path / "run")
    write_json(directory.state, {})
    write_json(directory.exit, {"return_code": 0, "cause": ""})
    assert status_to_message(attempt).state == messages.ATTEMPT_STATE_RUNNING
    attempt.conclude(peak_bytes=0, available_bytes=0, co_located="nobody")
    reported = status_to_message(attempt)
    assert (reported.state, reported.exited.exit_class) == (messages.ATTEMPT_STATE_ENDED, "done")
