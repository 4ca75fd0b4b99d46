"""What an error of SQLite means for a stored state: a full disk, a directory that refuses, or damage.

Damage is reported without what is damaged: records hold the environment variables of jobs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scheduler_service.errors import (
    StateDamagedError,
    StateFromNewerVersionError,
    StateFullError,
    StateUnwritableError,
)

# The disk, its owner or what was to be written, not the file: what is there stays good.
# A file whose header forbids writing causes READONLY too.
_DISK_CODES = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_AUTH,
    }
)
_FINDINGS = {
    sqlite3.SQLITE_CORRUPT: "its pages do not fit together",
    sqlite3.SQLITE_NOTADB: "it is no database, or its first bytes are overwritten",
    sqlite3.SQLITE_READONLY: "its header forbids writing",
}
# Of an SQLite file; the page size is at 16, the number of pages at 28.
_HEADER_BYTES = 100
_SHARED_MEMORY_BYTES = 1 << 16
"""More than SQLite needs at once next to its file when it opens it."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate what goes wrong with the file inside the block.

    Raises:
        StateDamagedError: The file is not whole.
        StateUnwritableError: The disk or the permissions refuse.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise translated(error, path) from error


@contextmanager
def writing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Run the block as one transaction: all of it is stored, or nothing; raises as `reading` does."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error | UnicodeDecodeError):
            raise translated(error, path) from error
        raise


def strict_text(content: bytes) -> str:
    """Decode a text for SQLite, whose own decoder quotes what it cannot read."""
    return content.decode()


def translated(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StateDamagedError | StateUnwritableError:
    """Return what an error means; the library's words are kept only where they cannot quote a record."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path.parent)):
        return disk_full(path.parent)
    if code not in _DISK_CODES or (code == sqlite3.SQLITE_READONLY and _is_writable(path)):
        name = getattr(error, "sqlite_errorname", "") or "a text is not UTF-8"
        cut_off = _cut_off(path) if code == sqlite3.SQLITE_CORRUPT else ""
        return damaged(path, cut_off or _FINDINGS.get(code, f"a part of it cannot be read ({name})"))
    return StateUnwritableError(f"{path} cannot be used ({error}); look at the disk and the directory's permissions")


def disk_full(folder: Path) -> StateFullError:
    """Return the error of a state whose disk takes nothing more."""
    remedy = "a scheduler that runs goes on by itself then, one that could not start is started again"
    return StateFullError(f"the disk of {folder} is full; free some space there: {remedy}")


def _has_no_room(folder: Path) -> bool:
    """Look why SQLite could not map its shared memory: it does not say that the disk is full."""
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bfree * disk.f_frsize < _SHARED_MEMORY_BYTES
    return False


def from_newer(path: Path, finding: str) -> StateFromNewerVersionError:
    """Return the error of a file that this program is too old for."""
    return StateFromNewerVersionError(
        f"a newer version wrote {path}: {finding}; run that version again, "
        "or restore a backup made before the upgrade into an empty state directory"
    )


def damaged(path: Path, finding: str) -> StateDamagedError:
    """Return the error of a file that is not whole.

    Args:
        path: The file.
        finding: What is wrong and where, without content.
    """
    return StateDamagedError(f"{path} is damaged: {finding}; keep the file for analysis and {restore_remedy(path)}")


def restore_remedy(path: Path) -> str:
    """Return the way out of a state that is not whole, as a part of a sentence."""
    return f"restore the newest backup (python -m scheduler_service restore BACKUP --state-dir {path.parent} --force)"


def _cut_off(path: Path) -> str:
    """Say that a file is shorter than its own header states; empty = it is not, or cannot be looked at."""
    try:
        with path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
        size_bytes = path.stat().st_size
    except OSError:
        return ""
    if len(header) < _HEADER_BYTES:
        return f"it is cut off after {size_bytes:,} bytes"
    page_bytes = int.from_bytes(header[16:18], "big")
    stated_bytes = int.from_bytes(header[28:32], "big") * (65_536 if page_bytes == 1 else page_bytes)
    # The number of pages counts only where the header says that it was written with the newest change.
    if size_bytes >= stated_bytes or header[24:28] != header[92:96]:
        return ""
    return f"it is cut off: {size_bytes:,} of {stated_bytes:,} bytes are there"


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
