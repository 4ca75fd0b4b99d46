"""A cluster of `cotenant up` that runs for a year keeps a bounded log of each program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cotenant import local_cluster
from cotenant.local_cluster import Program


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(local_cluster, "LOG_BYTES_MAX", 10)
    found = Program("scheduler", "serve-scheduler", [], tmp_path)
    found.log_file.parent.mkdir()
    return found


def test_a_long_log_moves_aside_while_its_program_goes_on_writing(program: Program) -> None:
    older = program.log_file.with_name("scheduler.log.1")
    with program.log_file.open("ab", buffering=0) as written:
        written.write(b"0123456789")
        program.bound_log()
        assert not older.exists()
        for line in (b"x", b"second round", b"third"):
            written.write(line)
            program.bound_log()
    assert (older.read_bytes(), program.log_file.read_bytes()) == (b"second round", b"third")
    assert program.log_tail() == "third"


def test_a_log_that_cannot_be_copied_loses_no_line(program: Program) -> None:
    program.log_file.write_bytes(b"longer than ten")
    program.log_file.with_name("scheduler.log.1").mkdir()
    program.bound_log()
    assert program.log_file.read_bytes() == b"longer than ten"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -9 $$", "was ended by SIGKILL, as where the machine has no memory left"),
        ("kill -15 $$", "was ended by SIGTERM"),
        ("kill -40 $$", "was ended by signal 40"),
        ("exit 3", "ended with exit status 3"),
    ],
)
def test_how_a_program_ended_is_told(script: str, told: str, program: Program) -> None:
    assert program.how_it_ended() == "is running"
    program.process = subprocess.Popen(["sh", "-c", script])
    program.process.wait()
    assert program.how_it_ended() == told
