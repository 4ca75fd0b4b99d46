"""SQLite files of this program: opened in one way, and their errors reported in one."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.sqlite_reading import reading_uri
from predictor_service.errors import StoreFormatError, StoreFullError

_BUSY_TIMEOUT_S: Final = 10.0
_PRIVATE_MODE: Final = 0o600
# The disk, not the file: what is there stays good.
_DISK_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
    }
)


def open_database(path: Path, *pragmas: str, schema: str = "") -> sqlite3.Connection:
    """Opens a file, made when absent, for many threads that take turns; transactions are begun by hand.

    Args:
        path: The file.
        pragmas: Set in addition to a write-ahead log, e.g. "synchronous = FULL".
        schema: Statements that make what is missing.

    Raises:
        StoreFormatError: It is no database.
        StoreFullError: The disk or its owner does not let it be opened.
    """
    connection = None
    try:
        _make_private(path)
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
        for pragma in ("journal_mode = WAL", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        connection.executescript(schema)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise storage_error(error, path) from error
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Opens a file that is there without writing to its folder, which may be of another user, or take no writes.

    Raises:
        StoreFormatError: It is no database.
        StoreFullError: Its owner does not let it be read.
    """
    try:
        return sqlite3.connect(reading_uri(path), uri=True, timeout=_BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def _make_private(path: Path) -> None:
    """Lets only the owner read what is asked and measured here; SQLite gives its other files the same mode."""
    with suppress(OSError):  # of another user, or on a file system without modes: SQLite reports what it cannot do
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_MODE))
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            file = path.with_name(name)
            if file.exists() and stat.S_IMODE(file.stat().st_mode) != _PRIVATE_MODE:
                file.chmod(_PRIVATE_MODE)


def storage_error(error: sqlite3.Error, path: Path) -> StoreFullError | StoreFormatError:
    """What an error of the library means for the owner of a file."""
    # Errors of this program, e.g. a closed connection, have no code.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK_ERRORS:
        return StoreFullError(f"{path.name} takes nothing: {error}", remedy=f"check room and rights of {path.parent}")
    return StoreFormatError(f"{path} is not what it should be ({error})", remedy="move it away; a new one is made")
