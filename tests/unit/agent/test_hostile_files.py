"""Jobs own some of the directories that the agent reads: what stands there instead of a file must not end the agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.checkpointing.checkpoints import newest_resumable, read_checkpoint
from cotenant_agent.storage.durable_files import read_json
from cotenant_agent.storage.state_directory import AttemptDirectory


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe_with_a_silent_writer(path: Path) -> None:
    os.mkfifo(path)
    # Open for both, so that a reader finds a writer that writes nothing; the descriptor ends with the test's process.
    os.open(path, os.O_RDWR | os.O_NONBLOCK)


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("obstruct", [make_folder, make_pipe_with_a_silent_writer, make_link_to_itself])
def test_what_is_no_file_is_read_as_nothing(tmp_path: Path, obstruct: Callable[[Path], None]) -> None:
    attempt = Attempt(AttemptDirectory(tmp_path / "jobs" / "job.1"), {"job_id": "job"}, tmp_path, tmp_path)
    attempt.run_directory.mkdir()
    obstruct(attempt.run_directory / "progress.json")
    attempt.read_progress_file()
    assert attempt.track.steps_done == 0
    obstruct(tmp_path / "manifest.json")
    assert read_json(tmp_path / "manifest.json") is None


@pytest.mark.parametrize("obstruct", [make_folder, os.mkfifo, make_link_to_itself])
def test_a_manifest_that_names_no_plain_file_is_not_accepted(tmp_path: Path, obstruct: Callable[[Path], None]) -> None:
    directory = write_manifest(tmp_path, ["part"])
    obstruct(directory / "part")
    assert read_checkpoint(directory) is None
    assert newest_resumable([tmp_path / "1"]) is None


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5_000, ".", ""])
def test_a_manifest_with_a_name_that_no_file_has_is_not_accepted(tmp_path: Path, name: str) -> None:
    assert read_checkpoint(write_manifest(tmp_path, [name])) is None


def test_a_manifest_names_no_more_files_than_the_agent_can_look_at(tmp_path: Path) -> None:
    directory = write_manifest(tmp_path, ["part"] * 10_001)
    (directory / "part").touch()
    assert read_checkpoint(directory) is None


def write_manifest(job: Path, names: list[str]) -> Path:
    """A manifest of one fence that is right but for its names."""
    directory = job / "1"
    directory.mkdir()
    manifest = {"step": 7, "fence": 1, "files": names, "bytes": 0, "sha256": "", "duration_ms": 3}
    (directory / "cotenant_checkpoint.json").write_text(json.dumps(manifest))
    return directory
