"""Who changed which model when and why: one SQLite table to which rows are only ever added."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from cotenant.system_clock import now_ms
from predictor_service.sqlite_files import open_database, open_for_reading, storage_error

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS events (
  number INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, action TEXT NOT NULL, version TEXT NOT NULL,
  previous TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL, details TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS events_never_change BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'the history of model versions is only ever added to'); END;
CREATE TRIGGER IF NOT EXISTS events_never_leave BEFORE DELETE ON events
  BEGIN SELECT RAISE(ABORT, 'the history of model versions is only ever added to'); END;
"""
WHY_CHARACTERS_MAX: Final = 2_000


class VersionAction(StrEnum):
    """What happened to a version."""

    TRAINED = "trained"
    PROMOTED = "promoted"
    REFUSED = "refused"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEvent:
    """One line of the history.

    Attributes:
        action: What happened.
        version: The version it happened to; for `ROLLED_BACK` the one that is served again.
        previous: The version that was served before; empty when there was none.
        who: Person or program.
        why: One sentence.
        details: JSON-able, e.g. the comparison of the gate.
        at_ms: When; 0 before it is written.
        number: Place in the history from 1; 0 before it is written.
    """

    action: VersionAction
    version: str
    previous: str
    who: str
    why: str
    details: Mapping[str, Any] = field(default_factory=dict)
    at_ms: int = 0
    number: int = 0


class VersionHistory:
    """The history in one file; safe for many threads and processes.

    Args:
        path: Made when absent.

    Raises:
        StoreFormatError: It is no history.
        StoreFullError: The disk or its owner does not let it be opened.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = open_database(path, "synchronous = FULL", schema=_SCHEMA)

    def append(self, event: VersionEvent) -> None:
        """Adds one line; its time is now."""
        row = (
            now_ms(),
            event.action.value,
            event.version,
            event.previous,
            event.who,
            event.why[:WHY_CHARACTERS_MAX],
            json.dumps(event.details, sort_keys=True),
        )
        with self._lock:
            self._connection.execute(
                "INSERT INTO events (at_ms, action, version, previous, who, why, details) VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def events(self) -> list[VersionEvent]:
        """All lines, oldest first."""
        with self._lock:
            return _events(self._connection)

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()


def read_events(path: Path) -> list[VersionEvent]:
    """Returns all lines of a history, oldest first, and writes nothing; none where there is no file.

    Raises:
        StoreFormatError: It is no history.
        StoreFullError: Its owner does not let it be read.
    """
    if not path.is_file():
        return []
    try:
        with closing(open_for_reading(path)) as connection:
            return _events(connection)
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def _events(connection: sqlite3.Connection) -> list[VersionEvent]:
    rows = connection.execute(
        "SELECT number, at_ms, action, version, previous, who, why, details FROM events ORDER BY number"
    ).fetchall()
    return [
        VersionEvent(
            number=row[0],
            at_ms=row[1],
            action=VersionAction(row[2]),
            version=row[3],
            previous=row[4],
            who=row[5],
            why=row[6],
            details=json.loads(row[7]),
        )
        for row in rows
    ]
