"""Tests that run in forks of the process that collected them, seen from outside as a run of pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = "from tests.conftest import pytest_addoption, pytest_runtestloop\n"
FILES = {
    "test_one.py": """
import os, pathlib, sys, threading, pytest
PLACE = os.getpid()

@pytest.fixture(scope="session")
def of_the_run(tmp_path_factory):
    yield tmp_path_factory.mktemp("kept")
    pathlib.Path("taken_down").open("a").write("once\\n")

def test_a_fork_runs_what_was_collected_elsewhere(of_the_run):
    assert PLACE == os.getppid() and threading.active_count() == 1

@pytest.mark.parametrize("number", range(3))
def test_several(number, of_the_run, tmp_path):
    print("said by", number)
    assert number != 1, "one is wrong"

def test_left_out():
    pytest.skip("not here")
""",
    "test_two.py": """
def test_what_is_said_is_one_s_own(capfd):
    print("here")
    assert capfd.readouterr().out == "here\\n"
""",
    "test_dies.py": """
import os

def test_before():
    pass

def test_that_ends_its_worker():
    os._exit(9)

def test_after():
    pass
""",
    "test_long.py": """
import pathlib, time, pytest

@pytest.fixture
def held():
    yield
    pathlib.Path("let_go").touch()

def test_long(held):
    time.sleep(90)
""",
    "test_three.py": "def test_runs_whatever_became_of_others():\n    pass\n",
}


def run(folder: Path, *arguments: str, names: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name in names:
        (folder / name).write_text(FILES[name])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workers", "2", *arguments, *names]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def test_workers_run_every_file_and_tell_what_came_of_it(tmp_path: Path) -> None:
    done = run(tmp_path, "-ra", names=("test_one.py", "test_two.py"))
    assert done.returncode == 1, done.stderr
    assert re.search(r"1 failed, 4 passed, 1 skipped in", done.stdout), done.stdout
    assert "FAILED test_one.py::test_several[1] - AssertionError: one is wrong" in done.stdout
    assert "said by 1" in done.stdout
    assert "said by 2" not in done.stdout
    assert (tmp_path / "taken_down").read_text() == "once\n"


def test_a_worker_that_ends_is_a_failure_that_names_its_file_and_another_one_goes_on(tmp_path: Path) -> None:
    done = run(tmp_path, "-ra", names=("test_dies.py", "test_two.py", "test_three.py"))
    assert done.returncode == 1, done.stderr
    assert re.search(r"1 failed, 3 passed in", done.stdout), done.stdout
    assert re.search(r"worker \d ended with 9 in test_dies.py, after test_dies.py::test_before", done.stdout)


def test_workers_are_interrupted_when_enough_tests_have_failed(tmp_path: Path) -> None:
    done = run(tmp_path, "-x", names=("test_one.py", "test_long.py"))
    assert done.returncode == 1, done.stderr
    assert "stopping after 1 failures" in done.stdout
    assert (tmp_path / "let_go").exists()
