"""`cotenant observe` as a command: what it says where there is nothing to observe, and that it touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cotenant.errors import InputError
from cotenant_agent.errors import DeviceError, DriverMissingError
from cotenant_agent.observing.command import observe
from cotenant_agent.observing.foreign_jobs import ForeignJob, ForeignJobs
from tests.support.agent import STANDIN, wait_until

_JOB = """
import os, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
step = 0
while True:
    step += 1
    print(f"step {step}", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", _JOB], stdout=log, start_new_session=True)
    wait_until(lambda: (tmp_path / "log").stat().st_size > 0, "it is on its core, and makes steps")
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def only_job(job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    """Leave out what else of this machine is pinned to the core, such as jobs of other tests and of other people."""

    class OwnJobs(ForeignJobs):
        def find(self, users: Mapping[str, frozenset[int]]) -> list[ForeignJob]:
            return super().find({gpu_id: pids & {job.pid} for gpu_id, pids in users.items()})

    monkeypatch.setattr("cotenant_agent.observing.command.ForeignJobs", OwnJobs)
    return job


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="on one core every process is pinned to it")
def test_a_running_job_is_measured_and_goes_on(only_job: subprocess.Popen[bytes]) -> None:
    flags = ["host", *STANDIN, "--seconds", "4", "--interval", "0.5", "-o", "json"]
    own: list[dict[str, Any]] = []
    for _ in range(10):
        done = CliRunner().invoke(observe, flags, catch_exceptions=False)
        own += [json.loads(line) for line in done.stdout.splitlines()]
        if own:
            # On a busy machine a beat may pass without a step.
            break
    assert {row["job_id"] for row in own} == {f"group/{only_job.pid}"}
    assert all(row["step_ms"] >= 10 and row["steps"] > 0 for row in own)
    assert only_job.poll() is None


def test_without_a_driver_the_other_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DriverMissingError("cannot start NVML: NVML Shared Library Not Found")

    monkeypatch.setattr("cotenant_agent.observing.command.NvmlInventory", missing)
    with pytest.raises(DeviceError, match="observe cores: --standin-cores 0,1"):
        CliRunner().invoke(observe, ["--seconds", "1"], catch_exceptions=False)


def test_a_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="there is no core 99999"):
        CliRunner().invoke(observe, ["--standin-cores", "99999", "--seconds", "1"], catch_exceptions=False)


def test_jobs_of_other_engines_than_the_named_one_are_not_told(only_job: subprocess.Popen[bytes]) -> None:
    flags = ["ray", *STANDIN, "--seconds", "3", "--interval", "0.5", "-o", "json"]
    done = CliRunner().invoke(observe, flags, catch_exceptions=False)
    assert not done.stdout
    assert "no job of ray was on the devices of this machine, only of" in done.stderr
    assert "group" in done.stderr
    assert f"group/{only_job.pid}" not in done.stderr
