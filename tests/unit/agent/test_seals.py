"""Where a job could write the agent's files, nobody believes what it writes there; and what a restart changes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.attempt_table import AttemptTable
from cotenant_agent.attempts.launching import Launcher
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.keeper.job_processes import start_ticks
from cotenant_agent.keeper.seals import SEALED, Seal
from cotenant_agent.processes import LinuxProcesses, read_boot_id
from cotenant_agent.records import AttemptState
from cotenant_agent.storage.state_directory import AttemptDirectory, StateDirectory
from cotenant_agent.system_clock import boot_ms
from tests.support.agent import wait_until
from tests.support.fake_devices import FakeInventory
from tests.support.shim_bench import SHIM, Bench, running_shims, wait_for_looks

FORGED_END = {"return_code": 0, "cause": ""}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running_shims(tmp_path) as found:
        yield found


class Sealed:
    """A shim with a key, and the process that plays the agent with the other copy."""

    def __init__(self, bench: Bench, source: str = "import time; time.sleep(600)") -> None:
        self.seal = Seal.draw()
        self.directory = bench.prepare(source)
        self.agent = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        self.write("spec.json", json.loads((self.directory / "spec.json").read_text()))
        self.shim = subprocess.Popen(
            [*SHIM, str(self.directory), SEALED], start_new_session=True, stdin=subprocess.PIPE
        )
        bench.processes += [self.shim, self.agent]
        assert self.shim.stdin is not None
        with self.shim.stdin as stream:
            stream.write(self.seal.introduce(self.agent.pid, start_ticks(self.agent.pid)))
        wait_until((self.directory / "state.json").exists, "the job runs")

    def write(self, name: str, record: dict[str, object], *, sealed: bool = True) -> None:
        content = json.dumps(self.seal.put_on(name, record) if sealed else record)
        temporary = self.directory / f"{name}.new"
        temporary.write_text(content)
        temporary.replace(self.directory / name)

    def end(self) -> dict[str, Any]:
        wait_until((self.directory / "exit.json").exists, "the attempt has ended")
        return dict(json.loads((self.directory / "exit.json").read_text()))


def lease(end_in_ms: int) -> dict[str, object]:
    return {"deadline_boot_ms": boot_ms() + end_in_ms, "grace_ms": 100}


def test_a_job_neither_prolongs_its_lease_nor_loses_it(bench: Bench) -> None:
    attempt = Sealed(bench)
    attempt.write("lease.json", lease(1_500))
    wait_for_looks(attempt.shim.pid)
    attempt.write("lease.json", lease(600_000), sealed=False)
    assert attempt.end()["cause"] == "fenced"


@pytest.mark.parametrize("sealed", [True, False])
def test_a_lease_that_was_taken_away_ends_when_it_would_have(bench: Bench, *, sealed: bool) -> None:
    if sealed:
        attempt = Sealed(bench)
        attempt.write("lease.json", lease(1_500))
        wait_for_looks(attempt.shim.pid)
        (attempt.directory / "lease.json").unlink()
        assert attempt.end()["cause"] == "fenced"
        return
    directory = bench.prepare("import time; time.sleep(600)")
    (directory / "lease.json").write_text(json.dumps(lease(1_500)))
    shim = bench.start(directory)
    wait_until((directory / "state.json").exists, "the job runs")
    wait_for_looks(shim.pid)
    (directory / "lease.json").unlink()
    wait_until((directory / "exit.json").exists, "the attempt has ended")
    assert json.loads((directory / "exit.json").read_text())["cause"] == "fenced"


def test_a_job_does_not_stop_another_and_the_agent_does(bench: Bench) -> None:
    attempt = Sealed(bench)
    attempt.write("stop.json", {"cause": "forged", "grace_ms": 0}, sealed=False)
    wait_for_looks(attempt.shim.pid)
    assert attempt.shim.poll() is None
    attempt.write("stop.json", {"cause": "cancelled", "grace_ms": 5_000})
    record = attempt.end()
    assert record["cause"] == "cancelled"
    assert attempt.seal.is_on("exit.json", record)


def test_a_seal_holds_for_one_file_and_one_content() -> None:
    seal = Seal.draw()
    record = seal.put_on("lease.json", {"deadline_boot_ms": 1, "cause": "\ud800"})
    assert seal.is_on("lease.json", record)
    assert not seal.is_on("stop.json", record)
    assert not seal.is_on("lease.json", {**record, "deadline_boot_ms": 2})
    assert not Seal.draw().is_on("lease.json", record)
    assert not seal.is_on("lease.json", {"deadline_boot_ms": 1, "seal": None})


def test_after_the_end_of_its_agent_a_shim_believes_the_next_one(bench: Bench) -> None:
    attempt = Sealed(bench)
    attempt.agent.kill()
    attempt.agent.wait()
    attempt.write("stop.json", {"cause": "cancelled", "grace_ms": 5_000}, sealed=False)
    assert attempt.end()["cause"] == "cancelled"


TAKES_KEY = """
import ctypes
from cotenant_agent.keeper.shim_records import take_records
libc = ctypes.CDLL(None)
before = libc.prctl(3)
take_records(["sealed"])
print(before, libc.prctl(3), end="")
"""


def test_the_memory_with_the_key_is_closed_to_other_processes_and_no_file_has_it(bench: Bench) -> None:
    introduction = Seal.draw().introduce(os.getpid(), 1)
    done = subprocess.run([sys.executable, "-c", TAKES_KEY], input=introduction, capture_output=True, check=True)
    assert done.stdout == b"1 0"
    attempt = Sealed(bench)
    places = [
        *attempt.directory.iterdir(),
        *(Path(f"/proc/{attempt.shim.pid}") / name for name in ("cmdline", "environ")),
    ]
    for path in places:
        content = b""
        with contextlib.suppress(PermissionError):  # for others than root what is of a closed process is closed too
            content = path.read_bytes()
        assert attempt.seal.key not in content
        assert attempt.seal.key.hex().encode() not in content


def table_with(tmp_path: Path, directory: Path, seal: Seal | None) -> tuple[AttemptTable, StateDirectory]:
    """A table with one attempt whose shim plays the test itself: it lives."""
    state = StateDirectory(tmp_path / "state")
    table = AttemptTable(
        directory=state,
        processes=LinuxProcesses(),
        inventory=FakeInventory(["gpu-0"], memory_bytes=1_000),
        groups=ControlGroups(),
        launcher=cast("Launcher", SimpleNamespace(owner=None)),
    )
    spec: dict[str, object] = {"job_id": "job", "attempt": 1, "fence": 1, "boot_id": read_boot_id()}
    attempt = Attempt(AttemptDirectory(directory), spec, state.checkpoints, state.run, seal)
    table._attempts[attempt.key.directory_name] = attempt
    identity = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    record: dict[str, object] = {
        f"{role}_{name}": value for role in ("shim", "job") for name, value in identity.items()
    }
    record["boot_id"] = read_boot_id()
    (directory / "state.json").write_text(json.dumps(attempt.sealed(attempt.directory.state, record)))
    return table, state


@pytest.mark.parametrize("seal", [None, Seal.draw()], ids=["adopted by a later agent", "with its key"])
def test_a_forged_end_finishes_nothing_while_the_job_lives(
    tmp_path: Path, seal: Seal | None, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "job.1"
    directory.mkdir()
    table, state = table_with(tmp_path, directory, seal)
    (directory / "exit.json").write_text(json.dumps(FORGED_END))
    assert table.find_ended() == []
    if seal is not None:
        assert [attempt.state for attempt in table] == [AttemptState.RUNNING]
        assert [record.getMessage() for record in caplog.records] == ["record_refused"]
    state.close()


def test_a_job_that_forges_its_own_stop_or_pause_is_stopped_and_paused_nevertheless(tmp_path: Path) -> None:
    directory = tmp_path / "job.1"
    directory.mkdir()
    seal = Seal.draw()
    table, state = table_with(tmp_path, directory, seal)
    (attempt,) = table
    attempt.can_pause, attempt.gpu_ids = True, ("gpu-0",)
    (directory / "pause.json").write_text(json.dumps({"until_boot_ms": boot_ms() + 20_000}))
    table.pause(attempt.key, "SLOWDOWN_TOO_HIGH", 30_000)
    assert seal.is_on("pause.json", json.loads((directory / "pause.json").read_text()))
    (directory / "stop.json").write_text(json.dumps({"cause": "forged", "grace_ms": 1 << 40}))
    assert [item.state for item in table] == [AttemptState.RUNNING]
    table.stop(attempt.key, "cancelled", 1_000)
    assert seal.is_on("stop.json", json.loads((directory / "stop.json").read_text()))
    assert [item.state for item in table] == [AttemptState.STOPPING]
    state.close()


def test_an_end_that_its_shim_has_sealed_counts(tmp_path: Path) -> None:
    directory = tmp_path / "job.1"
    directory.mkdir()
    seal = Seal.draw()
    table, state = table_with(tmp_path, directory, seal)
    gone = {"boot_id": read_boot_id(), "shim_pid": 999_999_999, "job_pid": 999_999_999}
    (directory / "state.json").write_text(json.dumps(seal.put_on("state.json", gone)))
    (directory / "exit.json").write_text(json.dumps(seal.put_on("exit.json", {"return_code": 0, "cause": ""})))
    assert [end.exit_class for end in table.find_ended()] == ["done"]
    state.close()


def test_a_forged_end_of_a_job_that_was_killed_is_a_lost_one(tmp_path: Path) -> None:
    directory = tmp_path / "job.1"
    directory.mkdir()
    seal = Seal.draw()
    table, state = table_with(tmp_path, directory, seal)
    gone = {"boot_id": read_boot_id(), "shim_pid": 999_999_999, "job_pid": 999_999_999}
    (directory / "state.json").write_text(json.dumps(seal.put_on("state.json", gone)))
    (directory / "exit.json").write_text(json.dumps(FORGED_END))
    assert [end.exit_class for end in table.find_ended()] == ["lost"]
    state.close()
