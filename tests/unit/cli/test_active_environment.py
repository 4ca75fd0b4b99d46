"""Which Python a bare `python` of a job will be, told to somebody who has another one active."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cotenant.capture.reasons import NotCapturedError
from cotenant.cli import active_environment, capture_command, submit_capture
from cotenant.cli.active_environment import foreign_python_note, with_python_of_here
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler

VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python = tmp_path / "own" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return python


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_shell_with_an_environment_of_its_own_is_told_that_python_is_the_nodes(
    variable: str, foreign: Path, cotenant: CommandLine, scheduler: FakeScheduler, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(foreign.parent.parent))
    outcome = cotenant("submit", "--", "python", "train.py")
    assert outcome.code == 0
    assert f"write {foreign}" in outcome.err
    assert "own Python" not in cotenant("submit", "--", str(foreign), "train.py").err


@pytest.mark.parametrize(
    ("command", "environment", "active"),
    [
        (["python", "train.py"], {}, ""),
        (["python", "train.py"], {}, sys.prefix),
        (["python", "train.py"], {}, "/nowhere"),
        (["python", "train.py"], {"PATH": "/x/bin"}, "own"),
        (["bash", "run.sh"], {}, "own"),
        (["./train.py"], {}, "own"),
        ([], {}, "own"),
    ],
)
def test_nothing_is_told_where_the_python_is_no_other_or_was_named(
    command: list[str], environment: dict[str, str], active: str, foreign: Path, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(foreign.parent.parent) if active == "own" else active)
    assert foreign_python_note(command, environment) == ""


@pytest.mark.parametrize("has_own_torch", [False, True])
@pytest.mark.parametrize("has_other_torch", [False, True])
@pytest.mark.parametrize("stale", [False, True])
def test_a_python_that_conda_puts_first_on_the_path_is_told_where_it_alone_has_torch(
    foreign: Path, *, has_own_torch: bool, has_other_torch: bool, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conda's base is activated on top of the environment that holds cotenant, or only its folder is on PATH."""
    foreign.chmod(0o755)
    if has_other_torch:
        torch = foreign.parent.parent / "lib" / "python3.12" / "site-packages" / "torch"
        torch.mkdir(parents=True)
        (torch / "__init__.py").touch()
    if stale:
        monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
        monkeypatch.setenv("CONDA_PREFIX", str(foreign.parent.parent))
    monkeypatch.setenv("PATH", f"{foreign.parent}:/usr/bin:/bin")
    monkeypatch.setattr(active_environment, "find_spec", lambda name: object() if has_own_torch else None)
    note = foreign_python_note(["python", "train.py"], {})
    assert (f"{sys.executable}, which has no torch" in note) == (has_other_torch and not has_own_torch)
    assert note == "" or note.endswith(f"write {foreign}")
    monkeypatch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}:{foreign.parent}")
    assert foreign_python_note(["python", "train.py"], {}) == ""


def test_a_capture_runs_the_python_that_a_node_of_up_would(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_python_of_here(["python3", "train.py"], {}) == [sys.executable, "train.py"]
    assert with_python_of_here(["python", "x.py"], {"PATH": "/x"}) == ["python", "x.py"]
    monkeypatch.setenv("CONDA_PREFIX", str(foreign.parent.parent))
    assert with_python_of_here(["python", "x.py"], {}) == ["python", "x.py"]


def test_a_submission_is_captured_by_that_python(
    foreign: Path,
    cotenant: CommandLine,
    scheduler: FakeScheduler,
    predictor: FakePredictor,
    tmp_path: Path,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    seen: list[list[str]] = []

    def capture(command: list[str], **named: object) -> None:
        seen.append(command)

    monkeypatch.setattr(submit_capture, "capture_script", capture)
    cotenant("submit", "--dry-run", "--", "python", "-u", "train.py")
    assert seen == [[sys.executable, "-u", "train.py"]]


@pytest.mark.parametrize(("has_torch", "expected"), [(True, sys.executable), (False, "python")])
def test_a_prediction_captures_with_the_python_beside_it_where_none_is_active_and_that_one_has_torch(
    foreign: Path,
    cotenant: CommandLine,
    predictor: FakePredictor,
    tmp_path: Path,
    *,
    has_torch: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    def capture(command: list[str], **named: object) -> None:
        seen.extend(command)
        raise NotCapturedError("this is enough")

    monkeypatch.setattr(capture_command, "find_spec", lambda name: object() if has_torch else None)
    monkeypatch.setattr(capture_command, "capture_script", capture)
    outcome = cotenant("predict", "--device", "a100", "--", "python", "train.py")
    assert seen == [expected, "train.py"]
    assert (f"with {expected} (no environment is active)" in outcome.err) == has_torch
    assert "this is enough" in outcome.err
