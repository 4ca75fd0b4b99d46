"""Real shims and processes that stand still and go on: by signals, and by the kernel's freezer where it is usable."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.isolation.cgroups import ControlGroups, detect
from cotenant_agent.processes import LinuxProcesses
from cotenant_agent.system_clock import boot_ms
from tests.support.agent import wait_until
from tests.support.shim_bench import Bench, running_shims, state_of

# Counts a tenth of the time in a file of its own, and so does its child in a session of its own.
COUNTING = """
import os, pathlib, signal, subprocess, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
def leave(*_):
    (folder / f"{name}.left").write_text("in good order")
    sys.exit(85)
signal.signal(signal.SIGTERM, leave)
if name == "parent":
    subprocess.Popen([sys.executable, "-S", "-c", sys.argv[3], sys.argv[1], "child", ""], start_new_session=True)
(folder / f"{name}.pid").write_text(str(os.getpid()))
count = 0
while True:
    count += 1
    if count % 5_000 == 0:
        (folder / f"{name}.count").write_text(str(count))
        time.sleep(0.003)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running_shims(tmp_path) as found:
        yield found


class Job:
    """A job of two processes under a shim."""

    def __init__(self, bench: Bench, changes: dict[str, object]) -> None:
        folder = str(bench.root / "jobs")
        argv = [sys.executable, "-S", "-c", COUNTING, folder, "parent", COUNTING]
        self.directory = bench.prepare("", changes={"argv": argv, **changes})
        self.folder = Path(folder)
        self.bench = bench
        self.shim = bench.start(self.directory)
        wait_until(lambda: all(self._written(f"{name}.count") for name in ("parent", "child")), "both count")
        self.pids = [int(self._written(f"{name}.pid")) for name in ("parent", "child")]

    def _written(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def order_pause(self, for_ms: int) -> None:
        (self.directory / "pause.json").write_text(json.dumps({"until_boot_ms": boot_ms() + for_ms}))

    def pause(self) -> None:
        self.order_pause(for_ms=30_000)
        wait_until(lambda: bool(self.record().get("since_boot_ms")), "the job stands still")

    def count(self, name: str) -> int:
        """How far a process has counted; 0 also while it writes."""
        return int(self._written(f"{name}.count") or 0)

    def resume(self) -> None:
        (self.directory / "pause.json").unlink()

    def record(self) -> dict[str, int]:
        path = self.directory / "paused.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def cpu_ticks(self) -> list[int]:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        return [int(fields[11]) + int(fields[12]) for fields in stats]

    def is_alive(self) -> bool:
        return any(LinuxProcesses().identify(pid) is not None for pid in self.pids)

    def assert_still(self) -> None:
        before = self.cpu_ticks()
        time.sleep(0.5)
        assert self.cpu_ticks() == before

    def assert_running(self) -> None:
        before = self.cpu_ticks()
        wait_until(lambda: all(now > then for now, then in zip(self.cpu_ticks(), before, strict=True)), "both go on")


@pytest.fixture(params=["signals", "version_1", "version_2"])
def groups(request: pytest.FixtureRequest) -> Iterator[ControlGroups]:
    """What the job is paused by; skipped where the machine does not let the tests make such a group."""
    found = ControlGroups()
    name = f"test-pause-{os.getpid()}"
    if request.param == "version_2":
        found = ControlGroups(freezer=detect(name).unified)
    elif request.param == "version_1":
        parent = Path("/sys/fs/cgroup/freezer") / f"cotenant-{name}"
        found = ControlGroups(freezer=parent if os.access(parent.parent, os.W_OK) else None)
    if request.param != "signals" and found.freezer is None:
        pytest.skip(f"this machine does not let the tests make a group that freezes ({request.param})")
    yield found
    found.thaw("job.1")
    found.remove("job.1")
    found.remove_parents()
    assert found.freezer is None or not found.freezer.exists()


@pytest.fixture
def job(bench: Bench, groups: ControlGroups) -> Iterator[Job]:
    files = groups.create("job.1")
    found = Job(bench, {"cgroup_procs_files": list(files.procs_files), "cgroup_freeze_file": files.freeze_file})
    yield found
    groups.thaw("job.1")
    for pid in found.pids:
        identity = LinuxProcesses().identify(pid)
        if identity is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended since
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not found.is_alive(), "the job is gone")


def test_every_process_of_a_job_stands_still_and_goes_on(job: Job) -> None:
    job.pause()
    job.assert_still()
    job.resume()
    job.assert_running()
    wait_until(lambda: job.record()["changes"] == 2, "the end of the pause is on record")
    assert job.record()["paused_ms"] >= 500


def test_a_pause_ends_by_itself_although_nobody_asks_for_it(job: Job) -> None:
    job.order_pause(for_ms=3_000)
    wait_until(lambda: job.record().get("changes") == 2, "the pause has begun and is over")
    job.assert_running()


def test_a_stop_lets_a_paused_job_leave_in_good_order(job: Job) -> None:
    job.pause()
    record = job.bench.stop(job.directory)
    assert (record["return_code"], record["killed"]) == (85, False)
    assert [job._written(f"{name}.left") for name in ("parent", "child")] == ["in good order"] * 2


def test_the_end_of_the_lease_lets_a_paused_job_leave_in_good_order(job: Job) -> None:
    job.pause()
    (job.directory / "lease.json").write_text(json.dumps({"deadline_boot_ms": boot_ms() + 100, "grace_ms": 20_000}))
    wait_until((job.directory / "exit.json").exists, "the attempt has ended")
    record = json.loads((job.directory / "exit.json").read_text())
    assert (record["cause"], record["return_code"], record["killed"]) == ("fenced", 85, False)


def test_a_process_that_its_owner_had_stopped_stays_stopped(bench: Bench) -> None:
    job = Job(bench, {})
    os.kill(job.pids[1], signal.SIGSTOP)
    wait_until(lambda: state_of(job.pids[1]) == "T", "it stands still")
    job.pause()
    job.resume()
    wait_until(lambda: job.record()["since_boot_ms"] == 0, "the pause is over")
    assert state_of(job.pids[1]) == "T"
    bench.stop(job.directory, grace_ms=200)


def test_another_job_of_the_machine_runs_on(bench: Bench) -> None:
    other = subprocess.Popen([sys.executable, "-S", "-c", COUNTING, str(bench.root / "jobs"), "other", ""])
    try:
        job = Job(bench, {})
        job.pause()
        seen = job.count("other")
        wait_until(lambda: job.count("other") > seen, "the other one counts on")
        bench.stop(job.directory)
    finally:
        other.kill()
        other.wait()
