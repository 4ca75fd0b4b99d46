"""`cotenant observe` as a command: what it says where there is nothing to observe, and that it touches nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant.errors import InputError
from cotenant_agent.errors import DeviceError, DriverMissingError
from cotenant_agent.observing.command import observe

_JOB = """
import os, time
os.sched_setaffinity(0, {0})
step = 0
while True:
    step += 1
    print(f"step {step}", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give the test run its handlers back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", _JOB], stdout=log, start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="on one core every process is pinned to it")
def test_a_running_job_is_measured_and_goes_on(job: subprocess.Popen[bytes]) -> None:
    flags = ["host", "--standin-cores", "0", "--seconds", "4", "--interval", "0.5", "-o", "json"]
    own: list[dict[str, float]] = []
    for _ in range(10):
        done = CliRunner().invoke(observe, flags, catch_exceptions=False)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        own += [row for row in rows if row["job_id"] == f"group/{job.pid}"]
        if own:
            # Jobs of other tests that come and go on the core cut every window short for a while.
            break
    assert own
    assert all(row["step_ms"] >= 10 and row["steps"] > 0 for row in own)
    assert job.poll() is None


def test_without_a_driver_the_other_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DriverMissingError("cannot start NVML: NVML Shared Library Not Found")

    monkeypatch.setattr("cotenant_agent.observing.command.NvmlInventory", missing)
    with pytest.raises(DeviceError, match="observe cores: --standin-cores 0,1"):
        CliRunner().invoke(observe, ["--seconds", "1"], catch_exceptions=False)


def test_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="there is no core 99999"):
        CliRunner().invoke(observe, ["--standin-cores", "99999", "--seconds", "1"], catch_exceptions=False)


def test_jobs_of_other_engines_than_the_named_one_are_not_told(job: subprocess.Popen[bytes]) -> None:
    flags = ["ray", "--standin-cores", "0", "--seconds", "3", "--interval", "0.5", "-o", "json"]
    done = CliRunner().invoke(observe, flags, catch_exceptions=False)
    assert not done.stdout
    assert "no job of ray was on the devices of this machine, only of" in done.stderr
    assert "group" in done.stderr
    assert f"group/{job.pid}" not in done.stderr
