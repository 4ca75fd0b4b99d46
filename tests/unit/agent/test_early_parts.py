"""Parts of a gang across nodes that were started early: with the word to begin they do what an ordinary start does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.launching import Launcher
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.checkpointing.shared_storage import GANG_FILE
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.leases import Lease
from cotenant_agent.protocol import launch_from_message
from cotenant_agent.records import AttemptKey, GangPart, LaunchRequest
from cotenant_agent.storage.state_directory import StateDirectory
from tests.unit.agent.test_checkpoints import write_checkpoint
from tests.unit.agent.test_gang_parts import FIRST, order
from tests.unit.agent.test_rank_plan import GPUS, launcher_of, spec_of

SECOND = replace(FIRST, group_rank=1)
LEASE = Lease(1_000, 1_000)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path / "state")
    yield found
    found.close()


def request(part: GangPart) -> LaunchRequest:
    command, rank = (sys.executable, "train.py"), 0 if part.group_rank == 0 else 1
    key = AttemptKey(job_id="gang", attempt=2, fence=5)
    return LaunchRequest(key=key, command=command, gpu_ids=GPUS[:1], rank=rank, has_ranks=True, gang_part=part)


def prepare(launcher: Launcher, part: GangPart) -> Attempt:
    return launcher.launch(request(part), None, (), LEASE, is_early=True)


def begin(launcher: Launcher, early: Attempt, part: GangPart, resume: Checkpoint | None = None) -> dict[str, Any]:
    """Let it begin; return the variables that it is told."""
    begun = launcher.let_begin(early, request(part), resume, (), LEASE)
    assert begun.directory.path == early.directory.path
    return dict(json.loads(begun.directory.go.read_text())["environment"])


def checkpoint(directory: StateDirectory, fence: int = 3) -> Checkpoint:
    path = write_checkpoint(directory.checkpoints / "gang", fence)
    return Checkpoint(directory=path, step=fence, written_ns=0)


def test_an_order_to_prepare_a_part_needs_no_port_and_one_to_launch_it_does() -> None:
    wanted = order(1, 2, part={"master_port": 0})
    part = launch_from_message(wanted, is_early=True).gang_part
    assert part is not None
    assert (part.group_rank, part.master_port) == (1, 0)
    with pytest.raises(CommandRefusedError, match="INVALID_GANG"):
        launch_from_message(wanted)
    with pytest.raises(CommandRefusedError, match="INVALID_GANG"):
        launch_from_message(order(1, 2), is_early=True)


def test_the_first_part_says_with_the_word_to_begin_from_where_all_go_on(directory: StateDirectory) -> None:
    launcher = launcher_of(directory)
    early = prepare(launcher, FIRST)
    assert not (early.checkpoint_directory / GANG_FILE).exists(), "which checkpoint will be the newest nobody knows yet"
    resume = checkpoint(directory)
    told = begin(launcher, early, FIRST, resume)
    assert told["COTENANT_RESUME"] == str(resume.directory)
    assert "MASTER_PORT" not in told, "it chose it when it was started"
    choice = json.loads((early.checkpoint_directory / GANG_FILE).read_text())
    assert choice["resume"].endswith("gang/3")


def test_another_part_starts_before_the_first_ones_folder_is_there_and_learns_the_port_at_last(
    directory: StateDirectory,
) -> None:
    launcher = launcher_of(directory)
    early = prepare(launcher, SECOND)
    assert not early.checkpoint_directory.exists()
    early.checkpoint_directory.mkdir(parents=True)
    told = begin(launcher, early, replace(SECOND, master_port=20_007))
    assert told["MASTER_PORT"] == "20007"
    assert not (early.checkpoint_directory / GANG_FILE).exists()
    assert early.rendezvous_port == 0, "the port is the first node's to tell"


def test_a_part_that_does_not_see_the_first_ones_folder_is_refused_before_it_begins(directory: StateDirectory) -> None:
    launcher = launcher_of(directory)
    early = prepare(launcher, SECOND)
    with pytest.raises(CommandRefusedError, match="CHECKPOINTS_NOT_SHARED"):
        begin(launcher, early, replace(SECOND, master_port=20_007))
    assert not early.directory.go.exists()


def test_parts_without_shared_storage_begin_from_what_was_fetched_and_the_first_says_what_it_was(
    directory: StateDirectory,
) -> None:
    launcher = launcher_of(directory, gangs_by_transfer=True)
    early = prepare(launcher, FIRST)
    assert spec_of(early)["environment"]["COTENANT_CHECKPOINT_PART"] == "1"
    begun = launcher.let_begin(early, request(FIRST), checkpoint(directory), (), LEASE)
    assert begun.resumed_fence == 3
    assert not (early.checkpoint_directory / GANG_FILE).exists()


def test_another_part_without_shared_storage_says_nothing_of_what_it_fetched(directory: StateDirectory) -> None:
    launcher = launcher_of(directory, gangs_by_transfer=True)
    early = prepare(launcher, SECOND)
    assert early.checkpoint_directory.is_dir()
    begun = launcher.let_begin(early, request(replace(SECOND, master_port=20_007)), checkpoint(directory), (), LEASE)
    assert (begun.resumed_fence, begun.rendezvous_port) == (0, 0)
