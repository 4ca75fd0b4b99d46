"""Real shims and jobs that stood still beyond their leases; signals go to what each test has started only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.isolation.isolation_means import find_namespace_obstacle
from cotenant_agent.keeper.standstill import STANDSTILL_MS
from cotenant_agent.system_clock import boot_ms
from tests.support.agent import wait_until
from tests.support.shim_bench import Bench, running_shims, state_of, wait_for_looks

COUNT = "import sys, time\nwhile True:\n    print('.', end='', flush=True)\n    time.sleep(0.01)"
# The child counts too, in a session of its own where that is asked for.
COUNT_TWICE = """
import os, sys, time
if os.fork() == 0 and "apart" in {words!r}:
    os.setsid()
while True:
    print(".", end="", flush=True)
    time.sleep(0.01)
"""
LEASE_MS = 3_000


class StoppedJob:
    """A job whose lease ended while it and its keepers were stopped, and which have just gone on.

    Args:
        bench: Where it runs.
        source: Of its program.
        grace_ms: Of the lease.
        overdue_ms: How long the lease is over by then.
        is_told: Its keepers learn of the lease while it lasts, as what watches a namespace does; else it is over when
            they see it, so that no test waits for it, and none that is slow is too late to stop them.
        is_shim_to_stay: It does not go on yet.
        changes: Of the attempt's spec.
    """

    def __init__(
        self,
        bench: Bench,
        source: str,
        *,
        grace_ms: int,
        overdue_ms: int,
        is_told: bool = False,
        is_shim_to_stay: bool = False,
        changes: dict[str, object] | None = None,
    ) -> None:
        self.directory = bench.prepare(source, changes=changes)
        self.shim = bench.start(self.directory)
        wait_until((self.directory / "state.json").exists, "the job runs")
        wait_until(lambda: self.counted() > 0, "the job counts")
        state = json.loads((self.directory / "state.json").read_text())
        pids = [self.shim.pid, *([state["init_pid"]] if "init_pid" in state else []), state["job_pid"]]
        self.job_pid = pids[-1]
        ends_ms = boot_ms() + LEASE_MS
        if is_told:
            self.renew(LEASE_MS, grace_ms)
            wait_for_looks(self.shim.pid)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGSTOP)
        if not is_told:
            # A look in which the shim was stopped must find it to last.
            ends_ms = boot_ms() + 100
            self.renew(100, grace_ms)
        assert overdue_ms >= STANDSTILL_MS
        time.sleep((ends_ms + overdue_ms - boot_ms()) / 1_000)
        # The shim last: it may end the others as soon as it goes on.
        for pid in reversed(pids[1:] if is_shim_to_stay else pids):
            os.kill(pid, signal.SIGCONT)

    def renew(self, lasting_ms: int, grace_ms: int) -> None:
        arriving = self.directory / "lease.arriving"
        arriving.write_text(json.dumps({"deadline_boot_ms": boot_ms() + lasting_ms, "grace_ms": grace_ms}))
        arriving.replace(self.directory / "lease.json")

    def counted(self) -> int:
        output = self.directory / "out.log"
        return output.stat().st_size if output.exists() else 0

    def exit_record(self) -> dict[str, object]:
        wait_until((self.directory / "exit.json").exists, "the attempt has ended")
        return dict(json.loads((self.directory / "exit.json").read_text()))

    def _is_copied(self) -> bool:
        found = self.counted()
        time.sleep(0.3)
        return self.counted() == found

    def counted_while_held(self, state: str = "T") -> int:
        """How far it is, when it has been looked at for a while; asserts that it stands still, in such a state."""
        wait_until(lambda: state_of(self.job_pid) == state, "the job is held")
        wait_until(self._is_copied, "what it has said by then is copied")
        found = self.counted()
        time.sleep(0.7)
        assert self.counted() == found
        assert state_of(self.job_pid) == state
        assert not (self.directory / "exit.json").exists()
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running_shims(tmp_path) as found:
        yield found


def test_a_job_that_stood_still_beyond_its_lease_goes_on_where_it_was_when_that_is_renewed(bench: Bench) -> None:
    job = StoppedJob(bench, COUNT_TWICE.format(words="together"), grace_ms=20_000, overdue_ms=2_100)
    counted = job.counted_while_held()
    job.renew(60_000, 20_000)
    wait_until(lambda: job.counted() > counted, "the job goes on")
    assert not (job.directory / "exit.json").exists()


def test_a_stop_kills_what_stood_still_beyond_its_lease_and_grace(bench: Bench) -> None:
    job = StoppedJob(bench, COUNT, grace_ms=5_000, overdue_ms=5_500)
    counted = job.counted_while_held()
    record = bench.stop(job.directory)
    assert (record["cause"], record["return_code"], record["killed"]) == ("stopped", -signal.SIGKILL, True)
    assert job.counted() == counted


def test_a_job_with_a_process_in_a_session_of_its_own_ends_at_once(bench: Bench) -> None:
    job = StoppedJob(bench, COUNT_TWICE.format(words="apart"), grace_ms=1_000, overdue_ms=2_100)
    record = job.exit_record()
    assert (record["cause"], record["killed"]) == ("fenced", True)


@pytest.fixture
def frozen_by() -> Iterator[dict[str, object]]:
    """What a spec says of a control group with the freezer of version 1."""
    parent = Path("/sys/fs/cgroup/freezer") / f"cotenant-test-standstill-{os.getpid()}"
    if not os.access(parent.parent, os.W_OK):
        pytest.skip("this machine does not let the tests make a group of the freezer of version 1")
    groups = ControlGroups(freezer=parent)
    files = groups.create("job.1")
    yield {"cgroup_procs_files": list(files.procs_files), "cgroup_freeze_file": files.freeze_file}
    groups.clear("job.1")
    groups.remove_parents()


def test_the_freezer_of_version_1_holds_also_a_process_in_a_session_of_its_own(
    frozen_by: dict[str, object], tmp_path: Path
) -> None:
    with running_shims(tmp_path) as bench:
        source = COUNT_TWICE.format(words="apart")
        job = StoppedJob(bench, source, grace_ms=20_000, overdue_ms=2_100, changes=frozen_by)
        counted = job.counted_while_held("D")
        job.renew(60_000, 20_000)
        wait_until(lambda: job.counted() > counted, "the job goes on")
        assert not (job.directory / "exit.json").exists()


def test_whatever_the_freezer_of_version_1_holds_ends_without_another_step(
    frozen_by: dict[str, object], tmp_path: Path
) -> None:
    with running_shims(tmp_path) as bench:
        source = COUNT_TWICE.format(words="apart")
        job = StoppedJob(bench, source, grace_ms=5_000, overdue_ms=5_500, changes=frozen_by)
        counted = job.counted_while_held("D")
        record = bench.stop(job.directory)
        assert (record["cause"], record["return_code"], record["killed"]) == ("stopped", -signal.SIGKILL, True)
        assert job.counted() == counted


@pytest.mark.parametrize(("is_shim_to_stay", "grace_ms"), [(True, 1_000), (False, 4_000)])
def test_what_watches_a_namespace_holds_all_of_it_and_nothing_outside(
    tmp_path: Path, is_shim_to_stay: bool, grace_ms: int
) -> None:
    """What it stops is in a namespace of its own, beside the shim or without it: a process of the tests goes on."""
    if obstacle := find_namespace_obstacle():
        pytest.skip(obstacle)
    bystander = subprocess.Popen([sys.executable, "-S", "-c", "import time\ntime.sleep(600)"], start_new_session=True)
    try:
        with running_shims(tmp_path, with_namespaces=True) as bench:
            job = StoppedJob(
                bench,
                COUNT,
                grace_ms=grace_ms,
                overdue_ms=grace_ms + 1_500,
                is_told=True,
                is_shim_to_stay=is_shim_to_stay,
            )
            counted = job.counted_while_held()
            assert state_of(bystander.pid) != "T"
            job.renew(60_000, 20_000)
            job.shim.send_signal(signal.SIGCONT)
            wait_until(lambda: job.counted() > counted, "the job goes on")
            assert not (job.directory / "exit.json").exists()
    finally:
        bystander.kill()
        bystander.wait()
