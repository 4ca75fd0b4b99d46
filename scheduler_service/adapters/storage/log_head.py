"""The newest event's place and link in a small file next to the database: a tail that was lost is noticed.

SQLite cannot tell a write-ahead log that was removed from one that was empty. The head is written after the commit that
it names and never flushed by itself: after a power cut it may be behind the log, and never ahead of it.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from scheduler_service.adapters.storage.private_files import create_private
from scheduler_service.adapters.storage.record_chain import LINK_BYTES
from scheduler_service.adapters.storage.sqlite_faults import restore_remedy
from scheduler_service.adapters.storage.stored_records import link_at, stored_state_id
from scheduler_service.errors import StateDamagedError

_log = logging.getLogger(__name__)

HEAD_ENDING = "-head"
_PATTERN = re.compile(rb"([0-9]{20}) ([0-9a-f]{%d}) ([0-9a-f]{1,64})\n" % (2 * LINK_BYTES))
_BYTES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest event that was noted, and of which state; the marker tells when another state was put here."""

    sequence: int
    link: bytes
    state_id: str


def head_path(database: Path) -> Path:
    """Return where the head of a database is noted."""
    return database.with_name(database.name + HEAD_ENDING)


def read_head(database: Path) -> Head | None:
    """Return what was noted; None where nothing readable was: the log is then believed as it is."""
    try:
        with head_path(database).open("rb") as stream:
            found = _PATTERN.fullmatch(stream.read(_BYTES_MAX))
    except OSError:
        return None
    if found is None:
        return None
    return Head(sequence=int(found[1]), link=bytes.fromhex(found[2].decode()), state_id=found[3].decode())


class HeadFile:
    """Notes the head of one database, opened once.

    Args:
        database: The database that it is about.
        state_id: Of the state in it.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, database: Path, state_id: str) -> None:
        self._state_id = state_id.encode()
        self._path = head_path(database)
        self._descriptor = create_private(self._path, flags=os.O_CREAT)
        self._has_failed = False

    def write(self, sequence: int, link: bytes) -> None:
        """Note the newest event; a disk that refuses is logged once, the log itself is whole without it."""
        try:
            os.pwrite(self._descriptor, b"%020d %b %b\n" % (sequence, link.hex().encode(), self._state_id), 0)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                _log.warning("log_head_not_written", extra={"path": str(self._path), "reason": error.strerror})
            self._has_failed = True

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


def check_head(connection: sqlite3.Connection, database: Path, sequence: int, noted: Head | None) -> None:
    """Compare a log with what was noted of it.

    Args:
        connection: The log.
        database: Its file.
        sequence: Its newest event.
        noted: The head as it was before the log was read, since another process may be writing both; that of another
            state says nothing.

    Raises:
        StateDamagedError: It ends before the newest event that was noted, or that is another one.
    """
    if noted is None or noted.state_id != stored_state_id(connection, database):
        return
    if noted.sequence > sequence:
        raise _tail_missing(database, noted=noted.sequence, found=sequence)
    # None: it has left meanwhile, or is of a version without links.
    if link_at(connection, database, noted.sequence) not in (None, noted.link):
        raise _other_log(database, noted.sequence)


def _tail_missing(database: Path, *, noted: int, found: int) -> StateDamagedError:
    """Return the error of a log that ends before the newest event that was noted."""
    return StateDamagedError(
        f"{database} is damaged: the newest {noted - found:,} of {noted:,} events are missing, since its write-ahead "
        f"log {database.name}-wal was removed or cut off, or an older copy was put here; put the file back, or "
        f"{restore_remedy(database)}; to go on without these events, remove {head_path(database).name}"
    )


def _other_log(database: Path, sequence: int) -> StateDamagedError:
    """Return the error of a log whose events are not those that were noted."""
    return StateDamagedError(
        f"{database} is damaged: event {sequence:,} is not the one that was noted when it was stored, so another log "
        f"was put here; put the right one back, or {restore_remedy(database)}; if it is the right one, "
        f"remove {head_path(database).name}"
    )
