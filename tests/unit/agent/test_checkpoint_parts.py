"""Checkpoints of gangs whose nodes have a folder each: what every node keeps, and how another one joins it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cotenant import job
from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.checkpointing.checkpoint_parts import joined_manifest
from cotenant_agent.checkpointing.checkpoint_pieces import read_pieces
from cotenant_agent.checkpointing.checkpoint_transfers import CheckpointTransfers
from cotenant_agent.checkpointing.checkpoints import Checkpoint, newest_resumable, read_checkpoint
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.records import AttemptKey, GrantedCheckpoint, LaunchRequest

MIB = 1 << 20
NODES = ("n0", "n1")


@pytest.fixture(autouse=True)
def _gang(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"COTENANT_JOB_ID": "job-1", "COTENANT_FENCE": "4", "COTENANT_CHECKPOINT_PART": "1", "WORLD_SIZE": "2"}
    for name, value in {**told, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("COTENANT_PROGRESS", raising=False)


def folder_of(root: Path, node_id: str) -> Path:
    return root / node_id / "job-1" / "4"


def declare(monkeypatch: pytest.MonkeyPatch, root: Path, rank: int, step: int, name: str = "step-{}.rank-{}") -> None:
    """What the helper does in a rank that is alone on its node."""
    folder = folder_of(root, NODES[rank])
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("COTENANT_CHECKPOINT_DIR", str(folder))
    path = job.checkpoint_directory() / name.format(step, rank)
    path.write_text(f"{step} of {rank}")
    job.checkpointed(path, step, is_shard=True)


class Relay:
    """A scheduler between the nodes below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []

    async def FetchCheckpoint(  # noqa: N802
        self, request: messages.FetchCheckpointRequest
    ) -> AsyncIterator[messages.FetchCheckpointResponse]:
        self.asked.append(request.checkpoint.node_id)
        for piece in read_pieces(folder_of(self.root, request.checkpoint.node_id), MIB):
            yield messages.FetchCheckpointResponse(piece=piece)


def resumed_by(root: Path, node_id: str, relay: Relay | None = None) -> Checkpoint | None:
    """What the first node of the next attempt goes on from."""
    transfers = CheckpointTransfers(
        node_id=node_id, root=root / node_id, membership=ClusterMembership(), limit_bytes=MIB
    )
    transfers.begin(relay or Relay(root), "secret")  # type: ignore[arg-type]
    one = GrantedCheckpoint(incarnation_id="", fence=4, node_id="n0", part_node_ids=NODES)
    request = LaunchRequest(
        key=AttemptKey(job_id="job-1", attempt=9, fence=9), command=("x",), granted=(one,), steps_done=7
    )
    return asyncio.run(transfers.find_resumable(request))[0]


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


@pytest.mark.parametrize("node_id", [*NODES, "n2"])
def test_the_parts_of_all_nodes_are_joined_wherever_the_gang_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node_id: str
) -> None:
    declare(monkeypatch, tmp_path, 0, 5)
    declare(monkeypatch, tmp_path, 1, 5)
    assert read_checkpoint(folder_of(tmp_path, "n0")) is None
    relay = Relay(tmp_path)
    found = resumed_by(tmp_path, node_id, relay)
    assert found is not None
    assert (found.step, found.world_size, found.directory) == (5, 2, folder_of(tmp_path, node_id))
    assert files_of(found.directory) == ["step-5.rank-0", "step-5.rank-1"]
    manifest = json.loads((found.directory / job.MANIFEST_NAME).read_text())
    assert [(shard["rank"], shard["files"]) for shard in manifest["shards"]] == [
        (0, ["step-5.rank-0"]),
        (1, ["step-5.rank-1"]),
    ]
    # It is sealed: the other nodes of the gang fetch it from here as any other.
    assert newest_resumable([found.directory]) == found
    assert relay.asked == [one for one in NODES if one != node_id]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_node_that_is_ahead_has_the_step_that_all_have_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ahead: int
) -> None:
    for step in (5, 10):
        declare(monkeypatch, tmp_path, 0, step)
        declare(monkeypatch, tmp_path, 1, step)
    declare(monkeypatch, tmp_path, ahead, 15)
    folder = folder_of(tmp_path, NODES[ahead])
    assert files_of(folder) == [f"step-{step}.rank-{ahead}" for step in (10, 15)]
    found = resumed_by(tmp_path, "n2")
    assert found is not None
    assert (found.step, files_of(found.directory)) == (10, ["step-10.rank-0", "step-10.rank-1"])


def test_a_step_that_is_declared_again_costs_no_node_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for rank in (0, 1):
        declare(monkeypatch, tmp_path, rank, 5)
    for _ in range(2):
        declare(monkeypatch, tmp_path, 0, 10)
    found = resumed_by(tmp_path, "n2")
    assert found is not None
    assert found.step == 5


def test_where_a_node_has_nothing_or_another_step_there_is_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declare(monkeypatch, tmp_path, 0, 5)
    assert joins(tmp_path) == "nothing lies there"
    declare(monkeypatch, tmp_path, 1, 6)
    assert joins(tmp_path) == "its nodes have the files of all ranks of no step"


def joins(root: Path) -> str:
    try:
        parts = [folder_of(root, name) for name in NODES]
        for part in parts:
            list(read_pieces(part, MIB))
        joined_manifest([json.loads((part / job.MANIFEST_NAME).read_text()) for part in parts])
    except CommandRefusedError as error:
        return error.message.partition(":")[0]
    return ""


def test_files_of_one_name_on_two_nodes_are_no_checkpoint_and_no_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk refuses the launch again and again; this one would never start."""
    for rank in (0, 1):
        declare(monkeypatch, tmp_path, rank, 5, name="step-{}")
    assert resumed_by(tmp_path, "n2") is None


def test_the_part_of_a_node_with_a_parameter_server_is_that_of_ranks_which_do_not_follow_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two ranks and a server, which is the last one of the world and beside the first."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank, node_id, here in ((0, "n0", "0,2"), (1, "n1", "1"), (2, "n0", "0,2")):
        monkeypatch.setenv("COTENANT_CHECKPOINT_PART", here)
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("COTENANT_CHECKPOINT_DIR", str(folder_of(tmp_path, node_id)))
        path = job.checkpoint_directory() / f"step-7.rank-{rank}"
        path.write_text(f"7 of {rank}")
        job.checkpointed(path, 7, is_shard=True)
        assert (folder_of(tmp_path, "n0") / job.MANIFEST_NAME).exists() == (rank == 2)
    found = resumed_by(tmp_path, "n2")
    assert found is not None
    assert (found.step, files_of(found.directory)) == (7, [f"step-7.rank-{rank}" for rank in range(3)])
