"""Checkpoints as the agent accepts them: only what a complete, matching manifest names, only under a granted fence."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.job import MANIFEST_NAME
from cotenant_agent.records import STEPS_LIMIT
from cotenant_agent.storage.durable_files import read_integer, read_json, read_text

_READ_BYTES = 1 << 20
_FILES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An accepted manifest.

    Attributes:
        directory: Where it lies.
        step: Optimizer steps in it.
        written_ns: When the manifest's file was written, in nanoseconds since 1970.
        world_size: Ranks that trained what it holds; 1 = one process, or an older helper wrote it.
    """

    directory: Path
    step: int
    written_ns: int
    world_size: int = 1


def read_checkpoint(directory: Path, *, may_be_part: bool = False) -> Checkpoint | None:
    """The checkpoint of one fence directory if its manifest is whole and every file is there; contents unread.

    It must name the job, and the cluster, under whose directory it lies; older helpers name neither.

    Args:
        directory: Where it lies.
        may_be_part: The files of this node's ranks of a gang across nodes will do: other nodes have the others.
    """
    manifest = read_json(directory / MANIFEST_NAME)
    step = read_integer(manifest, "step", -1)
    files = _named_files(directory, manifest)
    if manifest is None or not 0 <= step < STEPS_LIMIT or files is None or not _is_of(directory, manifest):
        return None
    if _shards(manifest, may_be_part=may_be_part) is None:
        return None
    try:
        found = [file.stat() for file in files]
        written_ns = (directory / MANIFEST_NAME).stat().st_mtime_ns
    except OSError:
        return None
    if not all(stat.S_ISREG(one.st_mode) for one in found):
        return None
    if sum(one.st_size for one in found) != read_integer(manifest, "bytes", -1):
        return None
    world_size = read_integer(manifest, "world_size", 1)
    return Checkpoint(directory=directory, step=step, written_ns=written_ns, world_size=world_size)


def _is_of(directory: Path, manifest: Mapping[str, object]) -> bool:
    job, cluster = directory.parent, directory.parent.parent
    return (
        str(manifest.get("fence")) == directory.name
        and manifest.get("job_id") in (None, job.name)
        and manifest.get("incarnation_id") in (None, cluster.name)
    )


def newest_resumable(granted: Iterable[Path]) -> Checkpoint | None:
    """The first granted directory with a checkpoint whose contents match their checksum.

    Args:
        granted: directories of fences that may be resumed, newest first. Others may belong to a writer that was cut
            off, to another job or to another cluster.
    """
    for directory in granted:
        checkpoint = read_checkpoint(directory)
        if checkpoint is not None and _contents_match(checkpoint.directory):
            return checkpoint
    return None


def _contents_match(directory: Path) -> bool:
    manifest = read_json(directory / MANIFEST_NAME)
    shards = _shards(manifest)
    if shards is None:
        return False
    if not shards:
        return _digest(_named_files(directory, manifest)) == read_text(manifest, "sha256")
    digests = [_digest(_named_files(directory, shard)) for shard in shards]
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()
    return digests == [read_text(shard, "sha256") for shard in shards] and whole == read_text(manifest, "sha256")


def _shards(manifest: Mapping[str, object] | None, *, may_be_part: bool = False) -> list[dict[str, object]] | None:
    """What each rank of a gang has declared, by rank; empty = rank 0 wrote it all; None = a rank's part is missing."""
    shards = (manifest or {}).get("shards", [])
    if manifest is None or not isinstance(shards, list) or not all(isinstance(shard, dict) for shard in shards):
        return None
    ranks = [read_integer(shard, "rank", -1) for shard in shards]
    names = [name for shard in shards for name in _names(shard)]
    world_size = read_integer(dict(manifest), "world_size")
    is_whole_gang = len(ranks) == world_size and ranks == list(range(len(ranks)))
    # A part may hold the last ranks of the world, its parameter servers, and some in the middle.
    is_part = ranks == sorted(set(ranks)) and all(0 <= rank < world_size for rank in ranks)
    has_all = is_whole_gang or (may_be_part and is_part)
    is_whole = has_all and sorted(names) == _names(manifest)
    return shards if is_whole or not shards else None


def _digest(files: Iterable[Path] | None) -> str:
    """SHA-256 of the contents in their order; empty where one cannot be read."""
    digest = hashlib.sha256()
    try:
        for file in files or ():
            # Without waiting: the job may have put a pipe in the file's place since.
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
                while block := stream.read(_READ_BYTES):
                    digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def _names(named: Mapping[str, object]) -> list[str]:
    names = named.get("files")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _named_files(directory: Path, manifest: dict[str, object] | None) -> list[Path] | None:
    """The manifest's files; None unless it names at least one and all lie inside the directory."""
    names = (manifest or {}).get("files")
    if not isinstance(names, list) or not 0 < len(names) <= _FILES_MAX:
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    files = [directory / name for name in names]
    try:
        root = directory.resolve()
        inside = all(file.resolve().is_relative_to(root) for file in files)
    except (OSError, ValueError, RuntimeError):
        # A name that no file can have, or links that lead to themselves.
        return None
    return files if inside else None
