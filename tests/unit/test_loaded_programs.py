"""A program that is forked from a loaded one behaves as one that Python starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support import loaded_programs
from tests.support.agent import STANDIN, prepare_baseline, wait_until
from tests.support.cases import sampled
from tests.support.loaded_programs import ForkedProcess, Loader, Process, living_programs, run_program, start_program

ENDLESS = ["run", "--scheduler", "127.0.0.1:9", "--node-id", "node-a", *STANDIN]


def started(folder: Path, *arguments: str, program: str = "cotenant_agent", **variables: str) -> Process:
    with (folder / "out").open("wb") as output, (folder / "err").open("wb") as errors:
        environment = {**os.environ, **variables}
        return start_program(program, arguments, folder=folder, environment=environment, output=output, errors=errors)


@pytest.mark.parametrize("arguments", sampled([["probe", *STANDIN], ["run", "--nonsense"], ["--help"]], 1))
def test_a_forked_program_answers_and_ends_as_python_does_it(tmp_path: Path, arguments: list[str]) -> None:
    forked = started(tmp_path, *arguments)
    assert isinstance(forked, ForkedProcess)
    command = [sys.executable, "-m", "cotenant_agent", *arguments]
    expected = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, env=dict(os.environ))
    assert forked.wait(60) == expected.returncode
    assert (tmp_path / "out").read_bytes() == expected.stdout
    assert (tmp_path / "err").read_bytes() == expected.stderr


@pytest.mark.parametrize("arguments", sampled([["ps", "--nonsense"], ["version"], ["submit", "no-such-file.yaml"]], 1))
def test_the_forked_command_line_prints_and_ends_as_python_does_it(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "cotenant", *arguments]
    expected = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, env=dict(os.environ), text=True)
    done = run_program("cotenant", arguments, folder=tmp_path, environment=dict(os.environ), timeout_s=60)
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_a_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    endless = [*ENDLESS, "--state-dir", str(tmp_path / "state")]
    prepare_baseline(tmp_path / "state")
    with pytest.raises(subprocess.TimeoutExpired):
        run_program("cotenant_agent", endless, folder=tmp_path, environment=dict(os.environ), timeout_s=0.3)
    assert living_programs(str(tmp_path)) == []


def test_it_runs_in_its_own_folder_with_its_own_environment(tmp_path: Path) -> None:
    forked = started(tmp_path, *ENDLESS, "--state-dir", "state", COTENANT_AGENT_SAMPLE_MS="soon")
    assert forked.wait(60) == 2
    assert "soon" in (tmp_path / "err").read_text()
    assert "COTENANT_AGENT_SAMPLE_MS" not in os.environ
    prepare_baseline(tmp_path / "state")
    forked = started(tmp_path, *ENDLESS, "--state-dir", "state")
    wait_until((tmp_path / "state" / "jobs").exists, "the agent keeps its state here")
    forked.terminate()
    assert forked.wait(60) == 0


def test_one_that_ends_while_it_is_signalled_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent collects it: between the look whether it runs and the signal its number may be nobody's."""

    def find_nobody(*_: object) -> NoReturn:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", find_nobody)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ForkedProcess(2, (), ours).kill()


def test_it_is_found_by_its_arguments_and_killed_as_any_other(tmp_path: Path) -> None:
    prepare_baseline(tmp_path / "state")
    forked = started(tmp_path, *ENDLESS, "--state-dir", str(tmp_path / "state"))
    assert living_programs(str(tmp_path)) == [forked.pid]
    assert forked.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.05)
    forked.kill()
    assert forked.wait(60) == -signal.SIGKILL
    assert forked.poll() == -signal.SIGKILL
    assert living_programs(str(tmp_path)) == []
    forked.kill()


def test_what_would_import_something_else_is_started_by_python(tmp_path: Path) -> None:
    for process in (
        started(tmp_path, "--help", program="json.tool"),
        started(tmp_path, "--help", PYTHONPATH=str(tmp_path)),
    ):
        assert isinstance(process, subprocess.Popen)
        assert process.wait(60) == 0


def test_benchmarks_start_all_that_they_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_programs, "_IS_ON", False)
    process = started(tmp_path, "--help")
    assert isinstance(process, subprocess.Popen)
    assert process.wait(60) == 0


def test_a_loader_that_was_killed_is_told_with_how_it_ended(tmp_path: Path) -> None:
    loader = Loader("workers")
    try:
        loader.process.kill()
        loader.process.wait()
        with pytest.raises(AssertionError, match="has ended: -9"):
            loader.start("tests.support.worker_program", [], tmp_path, {}, [0, 1, 2])
    finally:
        loader.end()
