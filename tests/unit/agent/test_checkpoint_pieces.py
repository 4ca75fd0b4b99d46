"""A checkpoint in pieces: what a sender reads, and what a receiver believes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotenant.v1.node_agent_pb2 import CheckpointFile, CheckpointPiece
from cotenant_agent.checkpointing import checkpoint_pieces
from cotenant_agent.checkpointing.checkpoint_pieces import NO_ROOM, IncomingCheckpoint, read_pieces
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.errors import CommandRefusedError
from tests.unit.agent.test_checkpoints import write_checkpoint, write_shards

MIB = 1 << 20
CLUSTER = "c" * 32
PLACE = (CLUSTER, "job-1", 3)
MANIFEST = "cotenant_checkpoint.json"


def written(tmp_path: Path, **changes: object) -> Path:
    return write_checkpoint(tmp_path / "there" / CLUSTER / "job-1", 3, changes)


def receive(tmp_path: Path, pieces: Iterable[CheckpointPiece], limit_bytes: int = MIB) -> Checkpoint:
    staging = tmp_path / "here" / ".incoming" / "n"
    incoming = IncomingCheckpoint(staging, PLACE, limit_bytes)
    try:
        for piece in pieces:
            incoming.take(piece)
        return incoming.finish(tmp_path / "here" / CLUSTER / "job-1" / "3")
    finally:
        incoming.close()
        assert not staging.exists(), "nothing is left behind"


def test_a_checkpoint_arrives_as_it_was_and_takes_the_place_of_an_attempt_without_one(tmp_path: Path) -> None:
    (tmp_path / "here" / CLUSTER / "job-1" / "3").mkdir(parents=True)
    (tmp_path / "here" / CLUSTER / "job-1" / "3" / "half").write_text("of one")
    found = receive(tmp_path, read_pieces(written(tmp_path), MIB))
    assert (found.step, found.directory) == (7, tmp_path / "here" / CLUSTER / "job-1" / "3")
    assert sorted(path.name for path in found.directory.iterdir()) == [MANIFEST, "step-7.pt"]
    assert (found.directory / "step-7.pt").read_text() == "weights"


def test_shards_and_files_in_folders_arrive_in_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_pieces, "CONTENTS_BYTES_MAX", 4)
    directory = write_shards(tmp_path / "there" / CLUSTER / "job-1")
    text = (directory / MANIFEST).read_text()
    (directory / "deep").mkdir()
    (directory / "0.pt").rename(directory / "deep" / "0.pt")
    (directory / MANIFEST).write_text(
        text.replace('"0.pt"', '"deep/0.pt"').replace('["deep/0.pt", "1.pt"]', '["1.pt", "deep/0.pt"]')
    )
    found = receive(tmp_path, read_pieces(directory, MIB))
    assert (found.directory / "deep" / "0.pt").read_text() == "weights of 0"
    assert found.world_size == 2


def link_to_secret(directory: Path) -> None:
    (directory / "step-7.pt").unlink()
    (directory / "other.pt").write_text("weights")
    (directory / "step-7.pt").symlink_to(directory / "other.pt")


def link_folder(directory: Path) -> None:
    (directory / "real").mkdir()
    (directory / "step-7.pt").rename(directory / "real" / "step-7.pt")
    (directory / "deep").symlink_to(directory / "real")
    text = (directory / MANIFEST).read_text()
    (directory / MANIFEST).write_text(text.replace("step-7.pt", "deep/step-7.pt"))


def pipe(directory: Path) -> None:
    (directory / "step-7.pt").unlink()
    os.mkfifo(directory / "step-7.pt")


SPOILERS: list[Callable[[Path], object]] = [
    link_to_secret,
    link_folder,
    pipe,
    lambda directory: (directory / MANIFEST).unlink(),
    lambda directory: (directory / MANIFEST).write_text("{"),
    lambda directory: (directory / MANIFEST).write_text("[" * 100_000),
    lambda directory: (directory / MANIFEST).write_bytes(b" " * (2 * MIB)),
    lambda directory: (directory / "step-7.pt").write_text("longer than stated"),
    shutil.rmtree,
]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_what_a_job_puts_in_the_place_of_its_files_is_not_sent(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    directory = written(tmp_path)
    spoil(directory)
    with pytest.raises(CommandRefusedError):
        receive(tmp_path, read_pieces(directory, MIB))
    assert not (tmp_path / "here" / CLUSTER / "job-1").exists()


@pytest.mark.parametrize("name", ["/etc/shadow", "../x", "a//b", "a/./b", "", "x\0", "n" * 300, "/".join("a" * 20)])
def test_a_name_that_leads_elsewhere_is_neither_read_nor_written(tmp_path: Path, name: str) -> None:
    directory = written(tmp_path, files=[name])
    with pytest.raises(CommandRefusedError):
        list(read_pieces(directory, MIB))
    manifest = json.dumps({"files": [name], "bytes": 1}).encode()
    hostile = [CheckpointPiece(manifest=manifest), CheckpointPiece(file=CheckpointFile(name=name, size_bytes=1))]
    with pytest.raises(CommandRefusedError):
        receive(tmp_path, hostile)


@pytest.mark.parametrize("change", [{"incarnation_id": "d" * 32}, {"job_id": "job-2"}, {"fence": 4}])
def test_a_checkpoint_of_another_lineage_is_not_taken(tmp_path: Path, change: dict[str, object]) -> None:
    pieces = list(read_pieces(written(tmp_path), MIB))
    manifest = {**json.loads(pieces[0].manifest), **change}
    pieces[0] = CheckpointPiece(manifest=json.dumps(manifest).encode())
    with pytest.raises(CommandRefusedError, match="of another job"):
        receive(tmp_path, pieces)


def manifest_of(**changes: object) -> CheckpointPiece:
    return CheckpointPiece(manifest=json.dumps({"files": ["a"], "bytes": 3, **changes}).encode())


def file_of(name: str = "a", size_bytes: int = 3) -> CheckpointPiece:
    return CheckpointPiece(file=CheckpointFile(name=name, size_bytes=size_bytes))


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [CheckpointPiece()],
        [file_of()],
        [CheckpointPiece(contents=b"abc")],
        [manifest_of(), manifest_of()],
        [manifest_of(), CheckpointPiece(contents=b"abc")],
        [manifest_of(), file_of("b")],
        [manifest_of(), file_of(size_bytes=4)],
        [manifest_of(), file_of(size_bytes=-1)],
        [manifest_of(), file_of(), CheckpointPiece(contents=b"abcd")],
        [manifest_of(), file_of(), CheckpointPiece(contents=b"ab")],
        [manifest_of(), file_of(), CheckpointPiece(contents=b"abc"), file_of()],
        [manifest_of(files=["a", "a"]), file_of()],
        [manifest_of(files=[MANIFEST]), file_of(MANIFEST)],
        [manifest_of(files=["a", "a/b"], bytes=3), file_of(), CheckpointPiece(contents=b"abc"), file_of("a/b", 0)],
        [manifest_of(bytes=-1)],
        [manifest_of(bytes="many")],
        [manifest_of(bytes=1 << 62)],
        [manifest_of(), file_of(), CheckpointPiece(contents=b"abc")],
    ],
)
def test_pieces_that_are_no_checkpoint_are_not_taken(tmp_path: Path, pieces: list[CheckpointPiece]) -> None:
    with pytest.raises(CommandRefusedError):
        receive(tmp_path, pieces)
    assert not (tmp_path / "here" / CLUSTER / "job-1").exists()


def test_changed_bytes_are_noticed_by_the_manifests_digest(tmp_path: Path) -> None:
    pieces = list(read_pieces(written(tmp_path), MIB))
    pieces[-1] = CheckpointPiece(contents=b"Weights")
    with pytest.raises(CommandRefusedError, match="not what its manifest says"):
        receive(tmp_path, pieces)


def test_a_checkpoint_larger_than_the_limit_goes_nowhere_and_the_flag_is_named(tmp_path: Path) -> None:
    directory = written(tmp_path)
    with pytest.raises(CommandRefusedError, match="--transfer-limit-bytes"):
        list(read_pieces(directory, 6))
    with pytest.raises(CommandRefusedError, match="--transfer-limit-bytes") as refused:
        receive(tmp_path, read_pieces(directory, 7), limit_bytes=6)
    assert refused.value.code == NO_ROOM


def test_a_disk_without_room_refuses_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = list(read_pieces(written(tmp_path), MIB))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=MIB))
    with pytest.raises(CommandRefusedError, match="make room") as refused:
        receive(tmp_path, pieces)
    assert refused.value.code == NO_ROOM


def test_a_disk_that_fills_up_on_the_way_refuses_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    pieces = list(read_pieces(written(tmp_path), MIB))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CommandRefusedError, match="No space left") as refused:
        receive(tmp_path, pieces)
    assert refused.value.code == NO_ROOM
