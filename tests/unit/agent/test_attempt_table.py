"""The table of attempts over directories of a test's own making."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import MagicMock

import pytest

from cotenant_agent import node_agent
from cotenant_agent.attempts.attempt_table import AttemptTable
from cotenant_agent.attempts.launching import Launcher
from cotenant_agent.attempts.refused_launches import REFUSALS_KEPT_MAX, RefusedLaunches
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.leases import Lease
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.node_agent import AgentRules, NodeAgent
from cotenant_agent.processes import read_boot_id
from cotenant_agent.progress_reading.progress import ProgressReport
from cotenant_agent.records import AttemptKey, AttemptState, InventoryReading, JobUsage, LaunchRequest
from cotenant_agent.scheduler_link import LinkSettings
from cotenant_agent.storage.durable_files import keep_room
from cotenant_agent.storage.state_directory import AttemptDirectory, StateDirectory
from cotenant_agent.system_clock import boot_ms, wall_ms
from tests.support.agent import wait_until
from tests.support.fake_devices import FakeInventory, FakeProcess, FakeProcesses


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path)
    yield found
    found.close()


def table_of(state: StateDirectory) -> AttemptTable:
    return AttemptTable(
        directory=state,
        processes=FakeProcesses(),
        inventory=FakeInventory(["gpu-0"], memory_bytes=1_000),
        groups=ControlGroups(),
        launcher=cast("Launcher", SimpleNamespace(owner=None)),
    )


def write_attempt(state: StateDirectory, key: AttemptKey, **changes: object) -> Path:
    """An attempt that has started, as the next agent finds it."""
    directory = state.jobs / key.directory_name
    directory.mkdir()
    spec = {"job_id": key.job_id, "attempt": key.attempt, "fence": key.fence, "gpu_ids": ["gpu-0"], **changes}
    (directory / "spec.json").write_text(json.dumps(spec))
    (directory / "state.json").write_text("{}")
    (state.checkpoints / key.job_id / str(key.fence)).mkdir(parents=True)
    return directory


def test_an_older_attempt_is_ended_for_memory_and_on_leaving_although_a_newer_one_was_granted(
    state: StateDirectory,
) -> None:
    older, newer = (AttemptKey(job_id="job", attempt=number, fence=number) for number in (1, 2))
    directory = write_attempt(state, older)
    (state.checkpoints / "job" / str(newer.fence)).mkdir()
    table = table_of(state)
    table.adopt()
    for _ in range(3):
        table.take_reading(InventoryReading(gpus=(), jobs={older: JobUsage(memory_bytes=1_001)}))
    assert json.loads((directory / "stop.json").read_text())["cause"] == "gpu_oom"
    (directory / "stop.json").unlink()
    assert not table.stop_all("agent_exit")
    assert json.loads((directory / "stop.json").read_text())["cause"] == "agent_exit"


def test_a_full_disk_keeps_no_attempt_from_being_ended_for_memory(state: StateDirectory) -> None:
    key = AttemptKey(job_id="job", attempt=1, fence=1)
    directory = write_attempt(state, key)
    keep_room(directory / "stop.json")
    (directory / f".stop.json.{os.getpid()}").symlink_to("/dev/full")
    table = table_of(state)
    table.adopt()
    for _ in range(3):
        table.take_reading(InventoryReading(gpus=(), jobs={key: JobUsage(memory_bytes=1_001)}))
    assert json.loads((directory / "stop.json").read_text())["cause"] == "gpu_oom"
    assert next(iter(table)).state is AttemptState.STOPPING


def test_an_attempt_that_runs_here_is_stopped_although_a_newer_one_was_granted_elsewhere(state: StateDirectory) -> None:
    """Swarm seed 40340: the refusal read as the attempt's end, and the job ran beside its next attempt."""
    older = AttemptKey(job_id="job", attempt=1, fence=1)
    directory = write_attempt(state, older)
    (state.checkpoints / "job" / "2").mkdir()
    table = table_of(state)
    table.adopt()
    table.stop(older, "moved", 0)
    assert json.loads((directory / "stop.json").read_text())["cause"] == "moved"
    with pytest.raises(CommandRefusedError, match="older than 2"):
        table.stop(AttemptKey(job_id="job", attempt=0, fence=0), "moved", 0)


def test_groups_of_ended_attempts_are_cleared_at_the_start_and_those_with_a_live_keeper_are_not(
    state: StateDirectory, tmp_path: Path
) -> None:
    parent = tmp_path / "groups"
    table = AttemptTable(
        directory=state,
        processes=FakeProcesses(),
        inventory=FakeInventory(["gpu-0"], memory_bytes=1_000),
        groups=ControlGroups(memory=parent),
        launcher=cast("Launcher", SimpleNamespace(owner=None)),
    )
    for name in ("forgotten.1", "ended.1", "kept.1", "running.1"):
        (parent / name).mkdir(parents=True)
    for name in ("ended", "kept", "running"):
        directory = write_attempt(state, AttemptKey(job_id=name, attempt=1, fence=1))
        if name != "running":
            (directory / "stored").write_text("{}")
    with (state.jobs / "kept.1" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table.adopt()
    assert sorted(path.name for path in parent.iterdir()) == ["kept.1", "running.1"]


@pytest.mark.parametrize("later_ticks", [31, 99])
def test_a_gang_consists_of_the_trees_of_its_ranks_and_of_no_later_process_with_the_number_of_one(
    state: StateDirectory, later_ticks: int
) -> None:
    ranks: list[dict[str, object]] = [{"rank": rank, "log": "out.log", "environment": {}} for rank in (0, 1)]
    directory = write_attempt(state, KEY, ranks=ranks, gpu_ids=["gpu-0", "gpu-1"])
    table, fake = table_of(state), FakeProcesses()
    fake.table = {pid: FakeProcess(start_ticks=pid, parent=parent) for pid, parent in ((21, 9), (22, 21), (31, 9))}
    fake.table[31].start_ticks = later_ticks
    pids = [{"pid": pid, "start_ticks": pid} for pid in (21, 31)]
    record = {"boot_id": "boot", "shim_pid": 9, "shim_start_ticks": 9, "job_pid": 21, "job_start_ticks": 21}
    (directory / "state.json").write_text(json.dumps({**record, "ranks": pids}))
    table.adopt()
    (attempt,) = table
    expected = ((21, 22), (31,)) if later_ticks == 31 else ((21, 22), ())
    assert attempt.rank_members(fake) == expected
    assert attempt.members(fake) == sum(expected, ())


def test_processes_of_a_namespace_belong_to_the_job_also_when_their_parents_have_left(state: StateDirectory) -> None:
    directory = write_attempt(state, KEY)
    fake = FakeProcesses()
    fake.table = {pid: FakeProcess(start_ticks=pid, parent=parent) for pid, parent in ((10, 9), (11, 10), (12, 10))}
    record = {
        f"{role}_{name}": pid
        for role, pid in (("shim", 9), ("init", 10), ("job", 11))
        for name in ("pid", "start_ticks")
    }
    (directory / "state.json").write_text(json.dumps({"boot_id": "boot", **record}))
    table = AttemptTable(
        directory=state,
        processes=fake,
        inventory=FakeInventory(["gpu-0"], memory_bytes=1_000),
        groups=ControlGroups(),
        launcher=cast("Launcher", SimpleNamespace(owner=None)),
    )
    table.adopt()
    assert table.processes_by_attempt()[KEY].pids == (11, 12)


def test_what_outlived_its_shim_is_found_by_the_attempts_marker_and_ended(
    state: StateDirectory,
) -> None:
    mark = {"COTENANT_PROGRESS": str(state.run / "job.1" / "progress.sock")}
    directory = write_attempt(state, KEY, environment=mark)
    gone = {"pid": 999_999_999, "start_ticks": 1}
    record = {f"{role}_{name}": value for role in ("shim", "job") for name, value in gone.items()}
    (directory / "state.json").write_text(json.dumps({"boot_id": read_boot_id(), **record}))
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    escaped, other = (subprocess.Popen(sleeping, env=one, start_new_session=True) for one in (mark, {}))
    wait_until(Path(f"/proc/{escaped.pid}/environ").read_bytes, "it has executed its program")
    table = table_of(state)
    table.adopt()
    try:
        assert [end.exit_class for end in table.find_ended()] == ["lost"]
        assert escaped.wait(90) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (escaped, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize(("passed_ms", "ends"), [(10_000, ["lost"]), (0, [])])
def test_a_shim_that_never_started_is_missed_after_seconds_also_where_the_wall_clock_was_set_back(
    state: StateDirectory, passed_ms: int, ends: list[str]
) -> None:
    """Found by the swarm (seed 1122): the job of such an attempt stayed STARTING until the clock had caught up."""
    ahead_ms = wall_ms() + 3_600_000
    directory = write_attempt(state, KEY, requested_wall_ms=ahead_ms, requested_boot_ms=boot_ms() - passed_ms)
    (directory / "state.json").unlink()
    table = table_of(state)
    table.adopt()
    assert [end.exit_class for end in table.find_ended()] == ends


def test_looking_at_an_attempt_that_is_starting_does_not_take_the_lock_that_its_shim_needs(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shim that found its lock held by the agent's look gave up without a word, and the attempt was lost."""

    def refuse(_: AttemptDirectory) -> NoReturn:
        raise AssertionError("the lock was taken")

    directory = write_attempt(state, KEY, requested_boot_ms=boot_ms())
    (directory / "state.json").unlink()
    table = table_of(state)
    table.adopt()
    monkeypatch.setattr(AttemptDirectory, "taken", refuse)
    assert list(table.find_ended()) == []


def test_a_launch_that_was_refused_is_not_carried_out_when_it_is_repeated(state: StateDirectory) -> None:
    """Found by the swarm (seed 20089): the disk had room again, and the job ran beside its next attempt."""
    table = table_of(state)
    table.refused_launches.note(KEY, CommandRefusedError("NODE_FAILURE", "the disk is full"))
    request = LaunchRequest(key=KEY, command=("true",), gpu_ids=("gpu-0",))
    with pytest.raises(CommandRefusedError, match="NODE_FAILURE"):
        table.launch(request, None, Lease(0, 0))


def test_of_refused_launches_the_newest_are_remembered() -> None:
    refused = RefusedLaunches()
    keys = [AttemptKey(job_id="job", attempt=number, fence=number) for number in range(REFUSALS_KEPT_MAX + 1)]
    for key in keys:
        refused.note(key, CommandRefusedError("NODE_FAILURE", "the disk is full"))
    refused.check(keys[0])
    for key in keys[1:]:
        with pytest.raises(CommandRefusedError, match="NODE_FAILURE: the disk is full"):
            refused.check(key)


KEY = AttemptKey(job_id="job", attempt=1, fence=1)


def order_of(directory: Path) -> dict[str, Any]:
    path = directory / "pause.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def adopted(state: StateDirectory, **changes: object) -> tuple[AttemptTable, Path]:
    directory = write_attempt(state, KEY, **{"can_pause": True, **changes})
    table = table_of(state)
    table.adopt()
    return table, directory


def test_an_order_to_pause_is_stored_and_repeating_it_makes_no_pause_longer(state: StateDirectory) -> None:
    table, directory = adopted(state)
    table.pause(KEY, "SLOWDOWN_TOO_HIGH", 30_000)
    first = order_of(directory)
    assert first["cause"] == "SLOWDOWN_TOO_HIGH"
    table.pause(KEY, "SLOWDOWN_TOO_HIGH", 60_000)
    assert order_of(directory) == first
    table.pause(KEY, "SLOWDOWN_TOO_HIGH", 1_000)
    assert order_of(directory)["until_boot_ms"] < first["until_boot_ms"]
    table.resume(KEY)
    table.resume(KEY)
    assert order_of(directory) == {}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"can_pause": False}, "an older agent started it"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_PIPE_DIRECTORY": "pipes"}}, "MPS serves"),
    ],
)
def test_what_cannot_be_paused_is_refused_with_the_reason(
    state: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], why: str
) -> None:
    (tmp_path / "pipes").mkdir()
    (tmp_path / "pipes" / "control").touch()
    monkeypatch.chdir(tmp_path)
    table, directory = adopted(state, **changes)
    assert table.find(KEY).living_attempt.under_mps == (why == "MPS serves")
    with pytest.raises(CommandRefusedError, match=re.escape(why)) as refused:
        table.pause(KEY, "cause", 1_000)
    assert refused.value.code == "NOT_PAUSABLE"
    assert order_of(directory) == {}


def test_a_stand_in_is_never_under_mps(state: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control").touch()
    monkeypatch.chdir(tmp_path)
    table, _ = adopted(state, environment={"CUDA_VISIBLE_DEVICES": "", "CUDA_MPS_PIPE_DIRECTORY": "."})
    assert not table.find(KEY).living_attempt.under_mps


@pytest.mark.parametrize(("timeout_ms", "longest_ms"), [(0, 60_000), (600_000, 60_000), (40_000, 19_999), (1, 1)])
def test_a_gang_stands_still_for_less_than_half_of_what_its_ranks_wait_for_each_other(
    state: StateDirectory, timeout_ms: int, longest_ms: int
) -> None:
    table, directory = adopted(state, gpu_ids=["gpu-0", "gpu-1"], collective_timeout_ms=timeout_ms)
    before_ms = boot_ms()
    table.pause(KEY, "cause", 60_000)
    assert before_ms + longest_ms <= order_of(directory)["until_boot_ms"] <= boot_ms() + longest_ms


def test_an_order_that_the_disk_does_not_take_is_refused(state: StateDirectory) -> None:
    table, directory = adopted(state)
    (directory / "pause.json").mkdir()
    with pytest.raises(CommandRefusedError, match="cannot store the order"):
        table.pause(KEY, "cause", 1_000)


def test_a_pause_that_failed_is_named_once_and_the_next_order_is_another_one(state: StateDirectory) -> None:
    table, directory = adopted(state)
    table.pause(KEY, "cause", 30_000)
    failed = {"failure": "stuck", "failed_until_boot_ms": order_of(directory)["until_boot_ms"], "since_boot_ms": 0}
    (directory / "paused.json").write_text(json.dumps(failed))
    assert table.find_failed_pauses() == [(KEY, "stuck")]
    assert table.find_failed_pauses() == []
    table.pause(KEY, "cause", 40_000)
    assert order_of(directory)
    assert table.find_failed_pauses() == []


def test_a_paused_attempt_is_stopped_like_a_running_one_and_a_stopping_one_is_not_paused(state: StateDirectory) -> None:
    table, directory = adopted(state)
    (directory / "paused.json").write_text(json.dumps({"since_boot_ms": 1, "changes": 1}))
    assert next(iter(table)).state is AttemptState.PAUSED
    table.stop(KEY, "cancelled", 0)
    assert json.loads((directory / "stop.json").read_text())["cause"] == "cancelled"
    assert next(iter(table)).state is AttemptState.STOPPING
    table.pause(KEY, "cause", 1_000)
    assert order_of(directory) == {}


@pytest.mark.parametrize("record", ["", "[]", '{"since_boot_ms": "x"}', '{"since_boot_ms": true, "paused_ms": null}'])
def test_a_damaged_record_of_pauses_reads_as_none(state: StateDirectory, record: str) -> None:
    table, directory = adopted(state)
    (directory / "paused.json").write_text(record)
    (attempt,) = table
    assert (attempt.state, attempt.pause.paused_ms) == (AttemptState.RUNNING, 0)


def test_a_window_that_reaches_across_a_pause_is_not_reported_whoever_looks_first(state: StateDirectory) -> None:
    table, directory = adopted(state)
    (attempt,) = table
    reports = [ProgressReport(step=step, at_ns=step * 10**9) for step in range(1, 6)]
    for report in reports[:3]:
        attempt.track.accept(report)
    paused = {"since_boot_ms": 0, "paused_ms": 5_000, "changes": 2}
    (directory / "paused.json").write_text(json.dumps(paused))
    observed = attempt.observe()
    assert (observed.window_steps, observed.steps_done, observed.paused_ms) == (0, 3, 5_000)
    assert attempt.note_pauses()
    assert not attempt.note_pauses()
    for report in reports[3:]:
        attempt.track.accept(report)
    assert (attempt.observe().window_steps, attempt.living_attempt.pause_changes) == (1, 2)


@pytest.mark.parametrize(("gap_ms", "window_steps", "changes"), [(2_000, 4, 0), (2_001, 0, 1)])
def test_a_window_in_which_the_agent_stood_still_is_not_reported(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch, gap_ms: int, window_steps: int, changes: int
) -> None:
    """Its jobs most likely stood still too; those that went on before the agent did have said so by now."""
    table, _ = adopted(state)
    nothing, link = cast("Any", MagicMock()), LinkSettings(scheduler="127.0.0.1:1")
    agent = NodeAgent(
        rules=AgentRules(node_id="n"), link=link, table=table, inventory=nothing, windows=nothing, calibrations=nothing,
        metrics=AgentMetrics(),
    )  # fmt: skip
    (attempt,) = table
    for now_ms, steps in ((1_000, range(1, 3)), (1_000 + gap_ms, range(3, 6))):
        monkeypatch.setattr(node_agent, "steady_ns", lambda now_ms=now_ms: now_ms * 10**6)
        for step in steps:
            attempt.track.accept(ProgressReport(step=step, at_ns=step * 10**9))
        agent._look_after_attempts()
    assert (attempt.observe().window_steps, attempt.living_attempt.pause_changes) == (window_steps, changes)


def test_an_early_attempt_whose_launch_was_refused_never_begins(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AttemptTable, "_is_lost", lambda *_: False)
    key = AttemptKey(job_id="job", attempt=1, fence=1)
    write_attempt(state, key, is_early=True)
    table = table_of(state)
    table.adopt()
    table.refused_launches.note(key, CommandRefusedError("NODE_FAILURE", "the disk is full"))
    with pytest.raises(CommandRefusedError, match="the disk is full"):
        table.launch(cast("Any", SimpleNamespace(key=key)), None, Lease(0, 0))
