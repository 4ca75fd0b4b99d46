"""A capture that is told to end leaves neither its folder nor its script behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant import system_clock
from tests.support.scheduler_process import wait_until

CAPTURE = """
import sys
from pathlib import Path
from cotenant.capture.script_run import ScriptPlan, capture_folder, run_script

with capture_folder() as folder:
    command = ["sh", "-c", f"echo $$ {folder} >began.new; mv began.new began; exec sleep 1000"]
    plan = ScriptPlan(command=command, directory=Path(), environment={}, isolated=False, memory_bytes=1 << 30)
    run_script(plan, folder)
"""

NOT_IGNORING = """
import signal
signal.signal({number}, signal.default_int_handler if {number} == signal.SIGINT else signal.SIG_DFL)
"""
"""Tests themselves may run under nohup or in the background of a shell, where signals are ignored."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_end_from_outside_ends_the_script_and_removes_the_folder(number: signal.Signals, tmp_path: Path) -> None:
    source = NOT_IGNORING.format(number=int(number)) + CAPTURE
    capture = subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path, stderr=subprocess.DEVNULL)
    began = tmp_path / "began"
    while not began.exists():
        assert capture.poll() is None
        system_clock.wait_ms(20)
    pid, folder = began.read_text(encoding="utf-8").split()
    capture.send_signal(number)
    assert capture.wait() != 0
    assert not Path(folder).exists()
    # Whoever collects orphans here may be slow to.
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the script is gone")


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    ignoring = "import os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    hung_up = "    os.kill(os.getpid(), signal.SIGHUP)\nprint('went on')\n"
    source = ignoring + CAPTURE.replace("sleep 1000", "true") + hung_up
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "went on\n", done.stderr
