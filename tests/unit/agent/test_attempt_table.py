"""The table of attempts over directories of a test's own making."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cotenant_agent.attempt_table import AttemptTable
from cotenant_agent.cgroups import ControlGroups
from cotenant_agent.launching import Launcher
from cotenant_agent.records import AttemptKey, InventoryReading, JobUsage
from cotenant_agent.state_directory import StateDirectory
from tests.support.fake_devices import FakeInventory, FakeProcesses


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


def write_attempt(state: StateDirectory, key: AttemptKey) -> Path:
    """An attempt that has started, as the next agent finds it."""
    directory = state.jobs / key.directory_name
    directory.mkdir()
    spec = {"job_id": key.job_id, "attempt": key.attempt, "fence": key.fence, "gpu_ids": ["gpu-0"]}
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
