from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant_agent.devices import import_baseline
from cotenant_agent.devices.import_baseline import measure_baseline
from cotenant_agent.errors import DeviceError

PAGED_IN_BYTES = 32 << 20
_FRAMEWORK = f"""
import atexit
held = []
atexit.register(lambda: held.append(b"x" * {PAGED_IN_BYTES}))
"""


def write_interpreter(folder: Path) -> Path:
    """An interpreter that has no framework but what lies in the folder."""
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    interpreter.chmod(0o755)
    return interpreter


def test_the_import_is_measured_once_per_interpreter_and_version(tmp_path: Path) -> None:
    interpreter, kept = str(write_interpreter(tmp_path)), tmp_path / "standin_baseline.json"
    assert measure_baseline(tmp_path, interpreter).resident_bytes > 1 << 20
    record = json.loads(kept.read_text())
    kept.write_text(json.dumps({**record, "baseline_bytes": 7}))
    assert measure_baseline(tmp_path, interpreter).resident_bytes == 7
    kept.write_text(json.dumps({**record, "baseline_bytes": 7, "torch": "another"}))
    assert measure_baseline(tmp_path, interpreter).resident_bytes > 1 << 20


def test_a_record_without_the_end_of_a_process_is_measured_again(tmp_path: Path) -> None:
    interpreter, kept = str(write_interpreter(tmp_path)), tmp_path / "standin_baseline.json"
    first = measure_baseline(tmp_path, interpreter)
    record = json.loads(kept.read_text())
    del record["ended_bytes"]
    kept.write_text(json.dumps({**record, "baseline_bytes": 7}))
    again = measure_baseline(tmp_path, interpreter)
    assert again.ended_bytes >= again.resident_bytes > 1 << 20
    assert again.ended_bytes == pytest.approx(first.ended_bytes, rel=0.2)


def test_a_framework_that_pages_in_at_its_end_has_a_higher_baseline_of_ended_processes(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(_FRAMEWORK)
    found = measure_baseline(tmp_path, str(write_interpreter(tmp_path)))
    assert found.ended_bytes - found.resident_bytes > 0.9 * PAGED_IN_BYTES


def test_a_framework_that_cannot_be_imported_is_told_by_its_own_words_and_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open')")
    with pytest.raises(DeviceError) as caught:
        measure_baseline(tmp_path, str(write_interpreter(tmp_path)))
    assert str(caught.value).endswith(
        "ImportError: libcudart.so.13: cannot open; see that `import torch` works there, or that there is none"
    )
    assert "os.fork" not in str(caught.value)


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="nowhere"):
        measure_baseline(tmp_path, "/nowhere/python")


def test_a_framework_whose_import_never_ends_is_told_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(import_baseline, "_TIMEOUT_S", 1)
    with pytest.raises(DeviceError, match=r"no end within 1 s; see that `import torch` works there") as caught:
        measure_baseline(tmp_path, str(write_interpreter(tmp_path)))
    assert "os.fork" not in str(caught.value)


def test_an_import_ends_by_itself_where_the_agent_that_began_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)")
    shorter = import_baseline._MEASURE.replace(f"alarm({import_baseline._LIFE_S})", "alarm(1)")
    command = [str(write_interpreter(tmp_path)), "-c", shorter]
    # What is forked in it holds the output open as long as it lives.
    begun = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        begun.communicate(timeout=30)
        # Either of the two processes may be the first to end, and the one that waits then says how the other did.
        assert begun.returncode
    finally:
        if begun.returncode is None:
            os.killpg(begun.pid, signal.SIGKILL)
            begun.communicate()


def test_what_the_agent_was_told_to_import_from_is_no_place_of_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('of the agent')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    interpreter.chmod(0o755)
    assert measure_baseline(tmp_path, str(interpreter)).resident_bytes > 1 << 20
