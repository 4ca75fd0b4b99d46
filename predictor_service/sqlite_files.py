"""SQLite files of this program: opened in one way, and what goes wrong with them told in one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from predictor_service.errors import StoreFormatError, StoreFullError

_BUSY_TIMEOUT_S: Final = 10.0
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
        pragmas: Set beside a write-ahead log, e.g. "synchronous = FULL".
        schema: Statements that make what is missing.

    Raises:
        StoreFormatError: It is no database.
        StoreFullError: The disk or its owner does not let it be opened.
    """
    connection = None
    try:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
        for pragma in ("journal_mode = WAL", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        connection.executescript(schema)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise storage_error(error, path) from error
    return connection


def storage_error(error: sqlite3.Error, path: Path) -> StoreFullError | StoreFormatError:
    """What an error of the library means for who keeps something in a file."""
    # Errors of this program, e.g. a closed connection, have no code.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK_ERRORS:
        return StoreFullError(f"{path.name} takes nothing: {error}", remedy=f"check room and rights of {path.parent}")
    return StoreFormatError(f"{path} is not what it should be ({error})", remedy="move it away; a new one is made")
