"""The import of a job's own interpreter is measured beside the jobs, once, and counts as soon as it is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from cotenant_agent.devices import other_baselines
from cotenant_agent.devices.import_baseline import NO_BASELINE
from cotenant_agent.devices.other_baselines import INTERPRETERS_MAX, OtherBaselines

_FRAMEWORK = '__version__ = "9"\nheld = b"x" * (48 << 20)\n'
_WAITING = "import pathlib, time\npathlib.Path({place!r}).touch()\ntime.sleep(600)\n"


def write_interpreter(folder: Path, framework: str | None = _FRAMEWORK) -> str:
    """An interpreter of an environment of its own; counts its starts in a file beside it."""
    folder.mkdir()
    if framework is not None:
        (folder / "torch.py").write_text(framework)
        (folder / "torch-9.dist-info").mkdir()
        (folder / "torch-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9\n")
    interpreter = folder / "python3"
    interpreter.write_text(
        f'#!/bin/sh\necho start >> {folder}/starts\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n'
    )
    interpreter.chmod(0o755)
    return str(interpreter)


def starts(interpreter: str) -> int:
    kept = Path(interpreter).parent / "starts"
    return len(kept.read_text().splitlines()) if kept.exists() else 0


def until(condition: Callable[[], object]) -> None:
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def others(state: Path) -> Iterator[OtherBaselines]:
    found = OtherBaselines(state)
    yield found
    found.close()


def test_the_framework_of_another_interpreter_is_measured_in_the_background_and_kept(
    others: OtherBaselines, state: Path, tmp_path: Path
) -> None:
    interpreter = write_interpreter(tmp_path / "own")
    assert others.of(interpreter) is None, "nothing waits for it"
    until(lambda: others.of(interpreter))
    found = others.of(interpreter)
    assert found is not None
    assert found.resident_bytes > 48 << 20
    before = starts(interpreter)
    again = OtherBaselines(state)
    until(lambda: again.of(interpreter))
    assert again.of(interpreter) == found
    assert starts(interpreter) < 2 * before, "what was kept needs no import"


def test_an_interpreter_without_the_framework_counts_as_the_agents_own(others: OtherBaselines, tmp_path: Path) -> None:
    interpreter = write_interpreter(tmp_path / "plain", framework=None)
    assert others.of(interpreter) is None
    until(others.is_idle)
    assert starts(interpreter) == 1
    assert others.of(interpreter) is None
    until(others.is_idle)
    assert starts(interpreter) == 1, "it is asked once"


def test_one_that_cannot_be_measured_is_tried_once(others: OtherBaselines, tmp_path: Path) -> None:
    interpreter = write_interpreter(tmp_path / "broken", framework="raise ImportError('libcudart')")
    counts = []
    for _ in range(3):
        assert others.of(interpreter) is None
        until(others.is_idle)
        counts.append(starts(interpreter))
    assert counts[0] > 1
    assert len(set(counts)) == 1


@pytest.mark.parametrize("executable", ["", "run.sh", "/usr/bin/env", "torchrun", sys.executable])
def test_what_is_no_other_python_is_not_run(
    others: OtherBaselines, executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_baselines, "measure_baseline", lambda *_, **__: pytest.fail("it was run"))
    monkeypatch.setattr(other_baselines, "has_framework", lambda *_: pytest.fail("it was run"))
    assert others.of(executable) is None
    assert others.is_idle()


def test_no_more_interpreters_are_measured_than_the_bound(
    others: OtherBaselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def look(executable: str, _: object) -> bool:
        asked.append(executable)
        return False

    monkeypatch.setattr(other_baselines, "has_framework", look)
    for number in range(INTERPRETERS_MAX + 5):
        others.of(f"/environment-{number}/bin/python")
        until(others.is_idle)
    assert len(asked) == INTERPRETERS_MAX


def test_one_that_is_being_measured_ends_with_the_agent(others: OtherBaselines, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    interpreter = write_interpreter(tmp_path / "slow", framework=_WAITING.format(place=str(begun)))
    others.of(interpreter)
    until(begun.exists)
    began_s = time.monotonic()
    others.close()
    assert time.monotonic() - began_s < 30
    assert others.is_idle()
    assert others.of(str(Path(interpreter).with_name("python"))) is None
    assert others.is_idle(), "after the end nothing begins"


def test_one_is_measured_at_a_time(others: OtherBaselines, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_end = list[str](), threading.Event()

    def look(executable: str, _: object) -> bool:
        asked.append(executable)
        return not may_end.wait(30)

    monkeypatch.setattr(other_baselines, "has_framework", look)
    for name in ("first", "second"):
        others.of(f"/{name}/bin/python")
    until(lambda: asked)
    may_end.set()
    until(others.is_idle)
    assert asked == ["/first/bin/python"]
    others.of("/second/bin/python")
    until(others.is_idle)
    assert asked == ["/first/bin/python", "/second/bin/python"]


def test_one_that_begins_while_the_agent_ends_is_ended_too(others: OtherBaselines) -> None:
    others.close()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as late:
        others._note(cast("subprocess.Popen[str]", late))
        assert late.wait(30) == -signal.SIGKILL


def test_the_number_of_one_that_has_ended_is_not_signalled(
    others: OtherBaselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("it may be another's by now"))
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""], text=True, start_new_session=True)
    ended.wait()
    others._note(ended)
    others.close()


def test_the_oldest_figures_are_forgotten(others: OtherBaselines, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_baselines, "has_framework", lambda *_: True)
    monkeypatch.setattr(other_baselines, "measure_baseline", lambda *_, **__: NO_BASELINE)
    for age_s in range(70):
        kept = state / f"standin_baseline_{age_s}.json"
        kept.touch()
        os.utime(kept, (10_000 - age_s, 10_000 - age_s))
    (state / "standin_baseline.json").touch()
    others.of("/environment/bin/python")
    until(others.is_idle)
    left = {path.name for path in state.iterdir()}
    assert left == {"standin_baseline.json", *(f"standin_baseline_{age_s}.json" for age_s in range(64))}
