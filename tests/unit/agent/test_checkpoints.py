from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant_agent.checkpointing.checkpoints import newest_resumable, read_checkpoint


def write_checkpoint(job: Path, number: int, changes: Mapping[str, object] | None = None) -> Path:
    content = "weights"
    directory = job / str(number)
    directory.mkdir(parents=True)
    (directory / "step-7.pt").write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    manifest: dict[str, object] = {"step": 7, "fence": number, "files": ["step-7.pt"], "bytes": len(content)}
    manifest |= {"sha256": digest, "duration_ms": 3, **(changes or {})}
    (directory / "cotenant_checkpoint.json").write_text(json.dumps(manifest))
    return directory


def test_a_whole_checkpoint_is_accepted(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, 3))
    assert checkpoint is not None
    assert checkpoint.step == 7


@pytest.mark.parametrize(
    "change",
    [
        {"fence": 4}, {"files": []}, {"files": ["absent"]}, {"files": ["../../etc/passwd"]}, {"files": "step-7.pt"},
        {"bytes": 1}, {"step": -1}, {"step": "7"}, {"step": 2**63}, {"files": [3]},
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_not_accepted(tmp_path: Path, change: dict[str, object]) -> None:
    assert read_checkpoint(write_checkpoint(tmp_path, 3, change)) is None


def write_shards(job: Path, **changes: object) -> Path:
    """A checkpoint of two ranks, each with a file of its own."""
    directory = job / "3"
    directory.mkdir(parents=True)
    shards = []
    for rank in (0, 1):
        content = f"weights of {rank}"
        (directory / f"{rank}.pt").write_text(content)
        digest = hashlib.sha256(content.encode()).hexdigest()
        shards.append({"rank": rank, "step": 7, "files": [f"{rank}.pt"], "bytes": len(content), "sha256": digest})
    whole = hashlib.sha256("".join(str(shard["sha256"]) for shard in shards).encode()).hexdigest()
    manifest = {"step": 7, "fence": 3, "files": ["0.pt", "1.pt"], "bytes": 24, "sha256": whole, "world_size": 2}
    (directory / "cotenant_checkpoint.json").write_text(json.dumps({**manifest, "shards": shards, **changes}))
    return directory


def test_a_checkpoint_of_a_gang_is_resumed_with_every_shard_and_not_with_another_one_in_its_place(
    tmp_path: Path,
) -> None:
    directory = write_shards(tmp_path)
    found = newest_resumable([directory])
    assert found is not None
    assert found.world_size == 2
    (directory / "1.pt").write_text("weights of 7")
    assert newest_resumable([directory]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 3}, {"world_size": 1}, {"world_size": 10**12}, {"shards": [{"rank": 0, "files": ["0.pt"]}]},
        {"shards": "all"},
        {"shards": [7, 8]}, {"shards": [{"rank": 1, "files": ["0.pt"]}, {"rank": 0, "files": ["1.pt"]}]},
        {"shards": [{"rank": 0, "files": ["0.pt", "../../x"]}, {"rank": 1, "files": ["1.pt"]}]},
    ],
)  # fmt: skip
def test_a_manifest_in_which_a_rank_is_missing_is_not_accepted(tmp_path: Path, change: dict[str, object]) -> None:
    assert read_checkpoint(write_shards(tmp_path, **change)) is None


def test_the_part_of_one_node_is_only_a_checkpoint_where_parts_are_asked_for(tmp_path: Path) -> None:
    whole = write_shards(tmp_path)
    assert read_checkpoint(whole, may_be_part=True) is not None
    shards = json.loads((whole / "cotenant_checkpoint.json").read_text())["shards"]
    part = write_shards(tmp_path / "part", shards=shards[1:], files=["1.pt"], bytes=12)
    assert read_checkpoint(part) is None
    assert newest_resumable([part]) is None
    found = read_checkpoint(part, may_be_part=True)
    assert found is not None
    assert (found.step, found.world_size) == (7, 2)


@pytest.mark.parametrize("change", [{"world_size": 1}, {"shards": [{"rank": -1, "files": ["1.pt"]}]}, {"shards": [7]}])
def test_a_part_of_ranks_that_there_are_not_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    shards = [{"rank": 1, "files": ["1.pt"]}]
    directory = write_shards(tmp_path, **{"shards": shards, "files": ["1.pt"], "bytes": 12, **change})
    assert read_checkpoint(directory, may_be_part=True) is None


def test_no_manifest_means_no_checkpoint(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    (tmp_path / "cotenant_checkpoint.json").write_text("{")
    assert read_checkpoint(tmp_path) is None


def test_only_granted_fences_are_resumed_newest_first(tmp_path: Path) -> None:
    for fence in (1, 2, 3):
        write_checkpoint(tmp_path, fence)
    found = newest_resumable([tmp_path / "2", tmp_path / "1"])
    assert found is not None
    assert found.directory.name == "2"
    assert newest_resumable([]) is None


def test_a_checkpoint_with_other_contents_is_passed_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    (write_checkpoint(tmp_path, 2) / "step-7.pt").write_text("Weights")
    found = newest_resumable([tmp_path / "2", tmp_path / "1"])
    assert found is not None
    assert found.directory.name == "1"


@pytest.mark.parametrize("manifest", ["[" * 100_000, "9" * 5_000, '{"step": '])
def test_an_unreadable_manifest_is_none(manifest: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, 1)
    (directory / "cotenant_checkpoint.json").write_text(manifest)
    assert read_checkpoint(directory) is None
