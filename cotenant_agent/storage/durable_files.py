"""Small JSON files that are either the old or the new version, whatever happens in between."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

_SIZE_LIMIT_BYTES = 1 << 20
ROOM_BYTES = 16_384
"""More than a stop takes, and an end with what the job printed last."""


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Replace a file, whose directory exists, in one step that survives a power cut; on a full disk in kept room."""
    # In one piece: only so does the C encoder do it.
    content = json.dumps(value)
    try:
        temporary = _written(_temporary(path), "w", content)
    except OSError:
        if not room_of(path).exists():
            raise
        temporary = _written(room_of(path), "r+", content)
    temporary.replace(path)
    flush_directory(path.parent)


def _written(path: Path, mode: str, content: str) -> Path:
    with path.open(mode, encoding="utf-8") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    return path


def room_of(path: Path) -> Path:
    """Where room for one file is kept."""
    return path.with_name(f"{path.name}.room")


def keep_room(*paths: Path) -> None:
    """Take the space now that files will need when the disk is full, each once: what must end then ends."""
    for path in paths:
        room_of(path).write_bytes(b" " * ROOM_BYTES)


def refresh_json(path: Path, value: Mapping[str, object]) -> None:
    """Replace a small file of facts that a reboot invalidates, as leases, as well as the disk allows."""
    content = json.dumps(value).encode()
    try:
        _temporary(path).write_bytes(content)
        _temporary(path).replace(path)
    except OSError:
        # A full disk takes no second file, but what the first one occupies may be written again.
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            file.write(content)
            file.truncate()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def read_json(path: Path) -> dict[str, object] | None:
    """The stored object; None when the file is absent, too large or no JSON object (others may write there)."""
    try:
        value = json.loads(read_file(path, _SIZE_LIMIT_BYTES))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_file(path: Path, limit_bytes: int) -> bytes:
    """The content of a plain file; empty when it is absent or larger, or when a link or a pipe stands in its place."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        is_plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
        content = os.read(descriptor, limit_bytes + 1) if is_plain else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return content if len(content) <= limit_bytes else b""


def read_integer(record: Mapping[str, object] | None, name: str, default: int = 0) -> int:
    """A whole number out of such an object; the default when it is absent or something else."""
    value = (record or {}).get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def read_text(record: Mapping[str, object] | None, name: str) -> str:
    """A text out of such an object; empty when it is absent or something else."""
    value = (record or {}).get(name, "")
    return value if isinstance(value, str) else ""


def flush_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
