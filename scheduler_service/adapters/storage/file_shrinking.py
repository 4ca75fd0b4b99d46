"""Gives the disk back what a database no longer needs, a little at a time: its writer must not wait for it for long."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

from scheduler_service.adapters.storage.sqlite_faults import reading
from scheduler_service.errors import StateUnwritableError

_log = logging.getLogger(__name__)

# Pages that are free stay with the file up to this share: the next events need them.
_FREE_PAGES_RATIO = 0.1
_FREE_PAGES_MIN = 256
# Given back in one transaction, about 2 MiB, and in all after one compaction.
_PAGES_AT_ONCE = 512
_PAGES_PER_CALL_MAX = 65_536
# A write-ahead log that grew larger is cut off when it begins anew.
_WRITE_AHEAD_BYTES_MAX = 16 * 2**20


def let_shrink(connection: sqlite3.Connection) -> None:
    """Prepare a connection; a new file learns here that its pages can be given back, before anything is written."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if not pages:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WRITE_AHEAD_BYTES_MAX}")


def convert_old_file(connection: sqlite3.Connection, path: Path) -> None:
    """Let a file of an older version give pages back: it is copied once, which takes its size in free space.

    Where the disk refuses, the file stays as it is and the log says so.

    Raises:
        StateDamagedError: The file is not whole.
    """
    try:
        with reading(path):
            (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
            if not mode:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("VACUUM")
    except StateUnwritableError as error:
        _log.warning("state_does_not_shrink", extra={"path": str(path), "reason": error.message})


def give_pages_back(connection: sqlite3.Connection, path: Path, turn: threading.Lock) -> None:
    """Let the file shrink in small transactions, down to what the next events will need anyway.

    Args:
        connection: Its writer's.
        path: The file.
        turn: Held for each transaction, since the connection may be another thread's meanwhile.

    Raises:
        StateDamagedError: The file is not whole.
        StateUnwritableError: The disk refuses; what was given back so far stays so.
    """
    left = _PAGES_PER_CALL_MAX
    with reading(path):
        while (pages := _give_some_back(connection, left, turn)) > 0:
            left -= pages
        if left < _PAGES_PER_CALL_MAX:
            # The file itself shrinks now; a reader such as a backup only postpones that.
            with turn:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _give_some_back(connection: sqlite3.Connection, pages_max: int, turn: threading.Lock) -> int:
    with turn:
        pages = min(_spare_pages(connection), _PAGES_AT_ONCE, pages_max)
        if pages > 0:
            # A page is given back with every step, and `execute` makes only one.
            connection.executescript(f"PRAGMA incremental_vacuum({pages})")
    return pages


def _spare_pages(connection: sqlite3.Connection) -> int:
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    return int(free - max(_FREE_PAGES_MIN, _FREE_PAGES_RATIO * (pages - free))) if mode else 0
