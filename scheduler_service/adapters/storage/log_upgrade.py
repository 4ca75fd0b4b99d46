"""From the tables of an older version of the event log to those of this one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from scheduler_service.adapters.storage.record_chain import START
from scheduler_service.adapters.storage.sqlite_faults import reading, writing
from scheduler_service.adapters.storage.stored_records import FORMAT_VERSION, last_sequence

# Format 2; see `record_chain`. What is stored already has no link: the chain begins behind it.
_CHAIN = (
    "ALTER TABLE events ADD COLUMN link BLOB",
    "ALTER TABLE requests ADD COLUMN checksum BLOB",
    "ALTER TABLE snapshots ADD COLUMN link BLOB",
    "ALTER TABLE snapshots ADD COLUMN checksum BLOB",
    "CREATE TABLE chain (sequence INTEGER NOT NULL, link BLOB NOT NULL) STRICT",
)


def begin_chain(connection: sqlite3.Connection, sequence: int) -> None:
    """Add what format 2 has to tables of format 1, inside the caller's transaction.

    Args:
        connection: The log.
        sequence: Its newest event, behind which the chain begins.
    """
    for statement in _CHAIN:
        connection.execute(statement)
    connection.execute("INSERT INTO chain VALUES (?, ?)", (sequence, START))
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Bring an older log up to date, once; programs older than that refuse it from then on.

    Raises:
        StateError: It is damaged, or cannot be written.
    """
    with reading(path):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < FORMAT_VERSION:
        newest = last_sequence(connection, path)
        with writing(connection, path):
            begin_chain(connection, newest)
