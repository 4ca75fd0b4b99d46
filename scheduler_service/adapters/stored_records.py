"""Reading what the event log has stored: events, the newest snapshot, answered requests; and whether all is whole."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from scheduler_service.adapters.event_log import REMEMBERED_REQUESTS, AnsweredRequest, StoredEvent, StoredSnapshot
from scheduler_service.adapters.sqlite_faults import damaged, from_newer, reading
from scheduler_service.core.codec import decode_event
from scheduler_service.core.errors import CodecError, UnsupportedVersionError
from scheduler_service.core.events import Event
from scheduler_service.errors import SettingsError

# Raised with every change of the tables or of the encoding of events that an older program could not read.
FORMAT_VERSION = 1
# "CtnS" in ASCII: distinguishes our files from other SQLite files.
APPLICATION_ID = 0x43746E53
DATABASE_NAME = "events.sqlite3"
# Waited for the writer.
_BUSY_TIMEOUT_S = 10.0
# As bytes, so that one unreadable body does not hide which event it is.
_PAGE_OF_EVENTS = "SELECT sequence, CAST(body AS BLOB) FROM events WHERE sequence >= ? ORDER BY 1 LIMIT 1000"


def last_sequence(connection: sqlite3.Connection, path: Path) -> int:
    """Return the sequence of the newest event ever stored.

    Raises:
        StateDamagedError: It is not there.
    """
    rows = _select(connection, path, "SELECT value FROM counters WHERE name = 'last_sequence'")
    if not rows:
        raise damaged(path, "the number of its newest event is missing")
    return int(rows[0][0])


def latest_snapshot(connection: sqlite3.Connection, path: Path) -> StoredSnapshot | None:
    """Return the newest snapshot, or None.

    Raises:
        StateDamagedError: It is unreadable.
    """
    rows = _select(connection, path, "SELECT sequence, body FROM snapshots ORDER BY 1 DESC LIMIT 1")
    if not rows:
        return None
    sequence, body = rows[0]
    try:
        return StoredSnapshot(sequence=sequence, state=json.loads(zlib.decompress(body)))
    except (zlib.error, ValueError, TypeError):
        raise damaged(path, f"the snapshot at event {sequence} is unreadable") from None


def answered_requests(connection: sqlite3.Connection, path: Path) -> Sequence[AnsweredRequest]:
    """Return the newest `REMEMBERED_REQUESTS` answered requests, oldest first.

    Raises:
        StateDamagedError: They are unreadable.
    """
    query = "SELECT request_id, body_sha256, answer FROM requests ORDER BY sequence DESC LIMIT ?"
    return [
        AnsweredRequest(request_id=request_id, body_sha256=body_sha256, answer=answer)
        for request_id, body_sha256, answer in reversed(_select(connection, path, query, REMEMBERED_REQUESTS))
    ]


def check_recoverable(connection: sqlite3.Connection, path: Path) -> int:
    """Read everything that a start of the scheduler reads.

    Returns:
        The sequence of the newest event.

    Raises:
        StateDamagedError: Something of it is missing or unreadable.
        StateFromNewerVersionError: A newer version wrote it.
    """
    check_format(connection, path)
    snapshot = latest_snapshot(connection, path)
    answered_requests(connection, path)
    found = snapshot.sequence if snapshot is not None else 0
    for stored in read_events(connection, path, found + 1):
        if stored.sequence != found + 1:
            break
        found = stored.sequence
    newest = last_sequence(connection, path)
    if found != newest:
        raise damaged(path, f"event {found + 1} is missing")
    return newest


def read_stored_events(state_dir: Path, *, from_sequence: int = 1) -> Iterator[StoredEvent]:
    """Yield the kept events of a state that another process may be writing.

    Raises:
        SettingsError: There is no event log.
        StateDamagedError: It is not whole.
        StateFromNewerVersionError: A newer version wrote it.
    """
    path = state_dir / DATABASE_NAME
    if not path.is_file():
        raise SettingsError(f"there is no state in {state_dir}; name the directory that the scheduler serves from")
    with reading(path):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    with closing(connection):
        check_format(connection, path)
        yield from read_events(connection, path, from_sequence)


def read_events(connection: sqlite3.Connection, path: Path, sequence: int) -> Iterator[StoredEvent]:
    """Yield events from a sequence on, page by page: a log may be larger than the memory.

    Raises:
        StateDamagedError: One in between is missing or unreadable.
        StateFromNewerVersionError: A newer version wrote one.
    """
    is_first = True
    while rows := _page(connection, path, sequence):
        for found, body in rows:
            if found != sequence and not is_first:
                raise damaged(path, f"event {sequence} is missing")
            is_first, sequence = False, found + 1
            yield StoredEvent(sequence=found, event=_decoded(path, found, body))


def _page(connection: sqlite3.Connection, path: Path, sequence: int) -> list[tuple[int, bytes]]:
    with reading(path):
        return connection.execute(_PAGE_OF_EVENTS, (sequence,)).fetchall()


def _decoded(path: Path, sequence: int, body: bytes) -> Event:
    try:
        return decode_event(json.loads(body.decode()))
    except UnsupportedVersionError as error:
        raise from_newer(path, str(error)) from error
    except (ValueError, TypeError, KeyError, CodecError):
        # The error itself may quote the record.
        raise damaged(path, f"event {sequence} is unreadable") from None


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Check that a database is a whole event log of a version that this program reads.

    Raises:
        StateDamagedError: It is not whole or not an event log.
        StateFromNewerVersionError: A newer version wrote it.
    """
    with reading(path):
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        findings = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise damaged(path, "it is not an event log of this program")
    if version > FORMAT_VERSION:
        raise from_newer(path, f"it has format {version}, this program reads up to {FORMAT_VERSION}")
    if findings != "ok":
        raise damaged(path, str(findings).splitlines()[-1])


def _select(connection: sqlite3.Connection, path: Path, query: str, *arguments: object) -> list[tuple[Any, ...]]:
    with reading(path):
        return connection.execute(query, arguments).fetchall()
