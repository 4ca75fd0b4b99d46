"""Checks a whole event log, wherever its file lies: every page, every checksum, every place in the order."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from cotenant.sqlite_reading import reading_uri
from scheduler_service.adapters.storage.log_head import Head, check_head, read_head
from scheduler_service.adapters.storage.sqlite_faults import damaged, reading
from scheduler_service.adapters.storage.stored_records import (
    DATABASE_NAME,
    answered_requests,
    check_format,
    last_sequence,
    latest_snapshot,
    newest_link,
    read_anchor,
    read_events,
)
from scheduler_service.errors import SettingsError

_BUSY_TIMEOUT_S = 10.0


def verify_log(place: Path) -> Mapping[str, object]:
    """Read everything that a log keeps and compute its checksums again.

    Args:
        place: A database, or the folder of one: a state directory or a backup. It is only read.

    Returns:
        What was found whole: database, format_version, first_sequence (0 = no event is kept), last_sequence, events,
        chained_from (the first event with a checksum, null in a log of an older version), snapshot_sequence (0 = none),
        requests, head_noted (whether the newest event was noted next to the database).

    Raises:
        SettingsError: There is no event log.
        StateDamagedError: Something is missing, unreadable or altered.
        StateFromNewerVersionError: A newer version wrote it.
    """
    path = place / DATABASE_NAME if place.is_dir() else place
    if not path.is_file() or path.stat().st_size == 0:
        raise SettingsError(
            f"there is no event log in {place}; name its file, or the folder that holds {DATABASE_NAME}"
        )
    # Before the log is read: a scheduler may be writing both.
    noted = read_head(path)
    with closing(_open(path)) as connection:
        check_format(connection, path)
        with reading(path):
            connection.execute("BEGIN")
        return {"database": str(path), **_verified(connection, path, noted), "head_noted": noted is not None}


def _open(path: Path) -> sqlite3.Connection:
    """Open a file for reading only; one without a writer is not even given files next to it."""
    with reading(path):
        return sqlite3.connect(reading_uri(path), uri=True, timeout=_BUSY_TIMEOUT_S)


def _verified(connection: sqlite3.Connection, path: Path, noted: Head | None) -> Mapping[str, object]:
    with reading(path):
        findings = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if findings != "ok":
        raise damaged(path, "its pages do not fit together")
    newest, anchor = last_sequence(connection, path), read_anchor(connection, path)
    check_head(connection, path, newest, noted)
    first, events = _read_all(connection, path, newest)
    snapshot = latest_snapshot(connection, path)
    if anchor is not None:
        newest_link(connection, path, newest)
    return {
        "format_version": version,
        "first_sequence": first,
        "last_sequence": newest,
        "events": events,
        "chained_from": anchor.sequence + 1 if anchor is not None else None,
        "snapshot_sequence": snapshot.sequence if snapshot is not None else 0,
        "requests": len(answered_requests(connection, path)),
    }


def _read_all(connection: sqlite3.Connection, path: Path, newest: int) -> tuple[int, int]:
    """Read every kept event; returns the first one's place and their number."""
    first, last, events = 0, 0, 0
    for stored in read_events(connection, path, 1):
        first, last, events = first or stored.sequence, stored.sequence, events + 1
    if events and last != newest:
        raise damaged(path, f"event {last + 1} is missing")
    return first, events
