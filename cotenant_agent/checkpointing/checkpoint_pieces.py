"""A checkpoint as pieces on its way between nodes: its manifest, then each file that it names, with its contents.

Jobs own these files and may put anything in their place. What is read follows no link and is a plain file of the job's
user; what is written lies in a folder of the agent's own until all of it matches the manifest's digests.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from cotenant.job import MANIFEST_NAME
from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.checkpointing.checkpoint_parts import NO_CHECKPOINT, joined_manifest
from cotenant_agent.checkpointing.checkpoints import Checkpoint, newest_resumable, read_checkpoint
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.storage.durable_files import flush_directory, read_integer

MANIFEST_BYTES_MAX: Final = 1 << 20
CONTENTS_BYTES_MAX: Final = 1 << 20
FREE_BYTES_MIN: Final = 64 << 20
"""What a fetched checkpoint leaves free on the disk, for the jobs that run."""
NO_ROOM: Final = "CHECKPOINT_NOT_FETCHED"
"""There is one, and this node cannot take it."""
_DEPTH_MAX = 16
_NAME_BYTES_MAX = 255


def read_pieces(directory: Path, limit_bytes: int) -> Iterator[messages.CheckpointPiece]:
    """Yield a checkpoint of this node; blocks while it reads.

    Args:
        directory: Of the fence under which it was written.
        limit_bytes: Larger ones are not sent.

    Raises:
        CommandRefusedError: There is no whole one, it is too large, or it is made of something else than plain files.
    """
    try:
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise CommandRefusedError(NO_CHECKPOINT, f"nothing lies there: {error.strerror}") from error
    try:
        with _open_plain(root, MANIFEST_NAME) as stream:
            manifest = stream.read(MANIFEST_BYTES_MAX + 1)
        names, size_bytes = _read_manifest(manifest)
        if read_checkpoint(directory, may_be_part=True) is None:
            raise CommandRefusedError(NO_CHECKPOINT, "it is not whole")
        _check_size(size_bytes, limit_bytes, NO_CHECKPOINT)
        yield messages.CheckpointPiece(manifest=manifest)
        for name in names:
            yield from _file_pieces(root, name)
    finally:
        os.close(root)


def _file_pieces(root: int, name: str) -> Iterator[messages.CheckpointPiece]:
    with _open_plain(root, name) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        yield messages.CheckpointPiece(file=messages.CheckpointFile(name=name, size_bytes=size_bytes))
        while contents := stream.read(CONTENTS_BYTES_MAX):
            yield messages.CheckpointPiece(contents=contents)


def _open_plain(root: int, name: str) -> BinaryIO:
    """Open a plain file below a folder, of the folder's owner, through no link."""
    try:
        found = _open_below(root, safe_parts(name))
    except OSError as error:
        raise CommandRefusedError(NO_CHECKPOINT, f"{name[:80]!r} cannot be read: {error.strerror}") from error
    about = os.fstat(found)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.fstat(root).st_uid:
        os.close(found)
        raise CommandRefusedError(NO_CHECKPOINT, f"{name[:80]!r} is no plain file of the job's")
    return os.fdopen(found, "rb")


def _open_below(root: int, parts: tuple[str, ...]) -> int:
    *folders, last = parts
    here = os.dup(root)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        # Without waiting: the job may have put a pipe in the file's place.
        return os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
    finally:
        os.close(here)


def safe_parts(name: str) -> tuple[str, ...]:
    """The folders and the file that a manifest's name means.

    Raises:
        CommandRefusedError: It leads out of its folder, or no file can be called so.
    """
    parts = tuple(name.split("/"))
    is_safe = len(parts) <= _DEPTH_MAX and not any(
        part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _NAME_BYTES_MAX for part in parts
    )
    if not is_safe:
        raise CommandRefusedError(NO_CHECKPOINT, f"{name[:80]!r} is no name of a file below the checkpoint's folder")
    return parts


def _read_manifest(manifest: bytes) -> tuple[list[str], int]:
    """The names and the size that a manifest states, with those of the checkpoint before that a part keeps.

    Raises:
        CommandRefusedError: It is none, or too large.
    """
    if len(manifest) > MANIFEST_BYTES_MAX:
        raise CommandRefusedError(NO_CHECKPOINT, f"its manifest is larger than {MANIFEST_BYTES_MAX} bytes")
    try:
        found = json.loads(manifest)
    except (ValueError, RecursionError) as error:
        raise CommandRefusedError(NO_CHECKPOINT, "its manifest is not JSON") from error
    names, size_bytes = _stated(found)
    before = found.get("previous")
    if isinstance(before, dict) and before.get("files"):
        more, more_bytes = _stated(before)
        # Files that were written over are those of the newer one.
        is_apart = not set(names) & set(more)
        names, size_bytes = ([*names, *more], size_bytes + more_bytes) if is_apart else (names, size_bytes)
    if len(set(names)) != len(names) or MANIFEST_NAME in names:
        raise CommandRefusedError(NO_CHECKPOINT, "its manifest states a file twice")
    return names, size_bytes


def _stated(manifest: object) -> tuple[list[str], int]:
    found = manifest if isinstance(manifest, dict) else {}
    names = found.get("files")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CommandRefusedError(NO_CHECKPOINT, "its manifest names no files")
    size_bytes = read_integer(found, "bytes", -1)
    if size_bytes < 0:
        raise CommandRefusedError(NO_CHECKPOINT, "its manifest states no size")
    return names, size_bytes


def _check_size(size_bytes: int, limit_bytes: int, code: str) -> None:
    if size_bytes > limit_bytes:
        detail = f"it has {size_bytes} bytes, and the limit is {limit_bytes} (--transfer-limit-bytes of the agent)"
        raise CommandRefusedError(code, detail)


class IncomingCheckpoint:
    """A checkpoint that is being fetched, in a folder of the agent's own.

    Args:
        staging: Where it is put together; what an earlier try has left there goes.
        place: Incarnation, job and fence under which it was written: its manifest must name them.
        limit_bytes: Larger ones are not taken.
    """

    def __init__(self, staging: Path, place: tuple[str, str, int], limit_bytes: int) -> None:
        incarnation_id, job_id, fence = place
        self._staging = staging
        self._folder = staging / (incarnation_id or "-") / job_id / str(fence)
        self._limit_bytes = limit_bytes
        self._manifest = b""
        self._parts: list[dict[str, object]] = []
        self._left: set[str] = set()
        self._left_bytes = 0
        self._file: BinaryIO | None = None
        self._file_left_bytes = 0
        shutil.rmtree(staging, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)

    def take(self, piece: messages.CheckpointPiece) -> None:
        """Write the next piece.

        Raises:
            CommandRefusedError: It is none that a checkpoint could go on with, or the node has no room for it.
        """
        try:
            match piece.WhichOneof("piece"):
                case "manifest" if not self._manifest:
                    self._begin(piece.manifest)
                case "file" if self._manifest:
                    self._begin_file(piece.file)
                case "contents" if self._file is not None and len(piece.contents) <= self._file_left_bytes:
                    self._file.write(piece.contents)
                    self._file_left_bytes -= len(piece.contents)
                case _:
                    raise CommandRefusedError(
                        NO_CHECKPOINT, "it came in no order of a checkpoint, or larger than stated"
                    )
        except (FileExistsError, NotADirectoryError) as error:
            raise CommandRefusedError(NO_CHECKPOINT, "two of its ranks have given a file the same name") from error
        except OSError as error:
            raise CommandRefusedError(
                NO_ROOM, f"this node cannot write the checkpoint: {error.strerror}; make room on its disk"
            ) from error

    def _begin(self, manifest: bytes) -> None:
        names, size_bytes = _read_manifest(manifest)
        _check_size(size_bytes, self._limit_bytes, NO_ROOM)
        free_bytes = shutil.disk_usage(self._folder).free
        if free_bytes < size_bytes + FREE_BYTES_MIN:
            raise CommandRefusedError(
                NO_ROOM,
                f"the checkpoint has {size_bytes} bytes and this node's disk {free_bytes} free; make room there",
            )
        self._manifest, self._left, self._left_bytes = manifest, set(names), size_bytes

    def _begin_file(self, file: messages.CheckpointFile) -> None:
        self._end_file()
        if file.name not in self._left or not 0 <= file.size_bytes <= self._left_bytes:
            raise CommandRefusedError(NO_CHECKPOINT, f"its manifest names no file {file.name[:80]!r} of that size")
        path = self._folder.joinpath(*safe_parts(file.name))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._left.remove(file.name)
        self._left_bytes -= file.size_bytes
        self._file, self._file_left_bytes = path.open("xb"), file.size_bytes

    def _end_file(self) -> None:
        if self._file is None:
            return
        if self._file_left_bytes:
            raise CommandRefusedError(NO_CHECKPOINT, "a file of it came shorter than stated")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None

    @property
    def is_whole(self) -> bool:
        """Whether the files of all ranks are named; where they are not, other nodes have the others."""
        found = json.loads(self._manifest or b"{}")
        shards = found.get("shards")
        return not isinstance(shards, list) or not shards or len(shards) == read_integer(found, "world_size")

    def end_part(self) -> None:
        """Begin with the part of the next node: what has come stays where it is put together.

        Raises:
            CommandRefusedError: As `finish`.
        """
        try:
            self._end_file()
            self._check_complete()
            self._parts.append(json.loads(self._manifest))
        except OSError as error:
            raise CommandRefusedError(
                NO_ROOM, f"this node cannot store the checkpoint: {error.strerror}; make room on its disk"
            ) from error
        self._manifest = b""

    def join_parts(self) -> None:
        """Seal what the parts that have come have in common, and leave the rest out.

        Raises:
            CommandRefusedError: They have nothing in common.
        """
        self._manifest = joined_manifest(self._parts)
        named = {name for part in self._parts for name in _read_manifest(json.dumps(part).encode())[0]}
        for name in named - set(_read_manifest(self._manifest)[0]):
            self._folder.joinpath(*safe_parts(name)).unlink(missing_ok=True)

    def _check_complete(self) -> None:
        if self._left or not self._manifest:
            raise CommandRefusedError(NO_CHECKPOINT, "it came without all of its files")

    def finish(self, target: Path) -> Checkpoint:
        """Put a whole checkpoint where it would lie had the attempt run here.

        Raises:
            CommandRefusedError: Something is missing, or what came is not what its manifest says.
        """
        try:
            self._end_file()
            self._check_complete()
            (self._folder / MANIFEST_NAME).write_bytes(self._manifest)
            if newest_resumable([self._folder]) is None:
                raise CommandRefusedError(NO_CHECKPOINT, "what came is not what its manifest says, or of another job")
            _replace_folder(self._folder, target, self._staging / "replaced")
        except OSError as error:
            raise CommandRefusedError(
                NO_ROOM, f"this node cannot store the checkpoint: {error.strerror}; make room on its disk"
            ) from error
        found = read_checkpoint(target)
        if found is None:
            raise CommandRefusedError(NO_CHECKPOINT, "it is gone again")
        return found

    def close(self) -> None:
        """Leave nothing behind of what was not finished."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        shutil.rmtree(self._staging, ignore_errors=True)


def _replace_folder(folder: Path, target: Path, replaced: Path) -> None:
    """Give a folder its name; what has that name without being a checkpoint goes."""
    target.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        target.rename(replaced)
    folder.rename(target)
    flush_directory(target.parent)
