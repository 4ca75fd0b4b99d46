"""The event log in SQLite: WAL with synchronous=FULL, so that an answered append survives a power cut.

One writer. The live loop hands in whatever has gathered since the last commit, so many callers share one flush.
A transaction that was torn by a crash is dropped by SQLite's own checksums when the file is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from scheduler_service.adapters.event_log import (
    REMEMBERED_REQUESTS,
    AnsweredRequest,
    LogRecord,
    StoredEvent,
    StoredSnapshot,
)
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.errors import CodecError, UnsupportedVersionError
from scheduler_service.core.events import Event
from scheduler_service.errors import (
    SettingsError,
    StateDamagedError,
    StateFromNewerVersionError,
    StateFullError,
    StateLockedError,
    StateUnwritableError,
)

# Raised with every change of the tables or of the encoding of events that an older program could not read.
FORMAT_VERSION = 1
# "CtnS" in ASCII: tells our files from other SQLite files.
APPLICATION_ID = 0x43746E53
DATABASE_NAME = "events.sqlite3"
LOCK_NAME = "scheduler.lock"
_KEPT_SNAPSHOTS = 2
_DELETED_EVENTS_AT_ONCE = 5_000
# Waited for a reader such as a backup; the writer itself is alone.
_BUSY_TIMEOUT_S = 10.0

_SCHEMA = """
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    body_sha256 TEXT NOT NULL,
    answer TEXT NOT NULL
) STRICT;
CREATE INDEX requests_by_age ON requests (sequence);
CREATE TABLE snapshots (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO counters VALUES ('last_sequence', 0)
"""
_PAGE_OF_EVENTS = "SELECT sequence, body FROM events WHERE sequence >= ? ORDER BY 1 LIMIT 1000"


class SqliteEventLog:
    """Stores facts in one SQLite file of a state directory, which it locks; see `EventLog` for the contract.

    Args:
        state_dir: Created with mode 0700 where it is missing.

    Raises:
        StateLockedError: Another scheduler uses the directory.
        StateFromNewerVersionError: A newer version wrote the file.
        StateDamagedError: The file is not whole or not ours.
        StateUnwritableError: The directory cannot be written.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / DATABASE_NAME
        self._lock_descriptor = lock_state(state_dir)
        try:
            self._connection = _open(self._path)
            self._last_sequence = self._read_last_sequence()
        except BaseException:
            os.close(self._lock_descriptor)
            raise

    def append(self, records: Sequence[LogRecord]) -> int:
        """Store all records in one transaction; see `EventLog.append`."""
        first = self._last_sequence + 1
        last = self._last_sequence + len(records)
        with _writing(self._connection, self._path):
            self._connection.executemany(
                "INSERT INTO events VALUES (?, ?, ?)",
                [_row(sequence, record) for sequence, record in enumerate(records, start=first)],
            )
            self._connection.executemany(
                # Whoever answers remembers fewer requests than are kept here until the next snapshot.
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?)",
                [
                    (record.request.request_id, sequence, record.request.body_sha256, record.request.answer)
                    for sequence, record in enumerate(records, start=first)
                    if record.request is not None
                ],
            )
            self._connection.execute("UPDATE counters SET value = ? WHERE name = 'last_sequence'", (last,))
        self._last_sequence = last
        return last

    def last_sequence(self) -> int:
        """Return the newest sequence; see `EventLog.last_sequence`."""
        return self._last_sequence

    def read_from(self, sequence: int) -> Iterator[StoredEvent]:
        """Yield stored events; see `EventLog.read_from`."""
        return _read_events(self._connection, self._path, sequence)

    def store_snapshot(self, snapshot: StoredSnapshot, *, retained_events: int) -> None:
        """Store the snapshot, drop old events in small transactions; see `EventLog.store_snapshot`."""
        body = zlib.compress(json.dumps(snapshot.state, separators=(",", ":")).encode())
        with _writing(self._connection, self._path):
            self._connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (snapshot.sequence, body))
            self._connection.execute(
                "DELETE FROM snapshots WHERE sequence NOT IN (SELECT sequence FROM snapshots ORDER BY 1 DESC LIMIT ?)",
                (_KEPT_SNAPSHOTS,),
            )
            self._connection.execute(
                "DELETE FROM requests WHERE sequence <="
                " (SELECT sequence FROM requests ORDER BY 1 DESC LIMIT 1 OFFSET ?)",
                (REMEMBERED_REQUESTS,),
            )
        self._delete_events_before(min(snapshot.sequence, self._last_sequence - retained_events) + 1)

    def latest_snapshot(self) -> StoredSnapshot | None:
        """Return the newest snapshot; see `EventLog.latest_snapshot`."""
        rows = self._select("SELECT sequence, body FROM snapshots ORDER BY 1 DESC LIMIT 1")
        if not rows:
            return None
        sequence, body = rows[0]
        try:
            return StoredSnapshot(sequence=sequence, state=json.loads(zlib.decompress(body)))
        except (zlib.error, ValueError) as error:
            raise _damaged(self._path, f"the snapshot at event {sequence} is unreadable ({error})") from error

    def answered_requests(self) -> Sequence[AnsweredRequest]:
        """Return the remembered requests; see `EventLog.answered_requests`."""
        rows = self._select(
            "SELECT request_id, body_sha256, answer FROM requests ORDER BY sequence DESC LIMIT ?", REMEMBERED_REQUESTS
        )
        return [
            AnsweredRequest(request_id=request_id, body_sha256=body_sha256, answer=answer)
            for request_id, body_sha256, answer in reversed(rows)
        ]

    def close(self) -> None:
        """Close the file and unlock the directory."""
        self._connection.close()
        os.close(self._lock_descriptor)

    def _select(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with _reading(self._path):
            return self._connection.execute(query, arguments).fetchall()

    def _read_last_sequence(self) -> int:
        return int(self._select("SELECT value FROM counters WHERE name = 'last_sequence'")[0][0])

    def _delete_events_before(self, sequence: int) -> None:
        deleted = _DELETED_EVENTS_AT_ONCE
        while deleted == _DELETED_EVENTS_AT_ONCE:
            with _writing(self._connection, self._path):
                deleted = self._connection.execute(
                    "DELETE FROM events WHERE sequence IN"
                    " (SELECT sequence FROM events WHERE sequence < ? ORDER BY 1 LIMIT ?)",
                    (sequence, _DELETED_EVENTS_AT_ONCE),
                ).rowcount


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
    with _reading(path):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    with closing(connection):
        check_format(connection, path)
        yield from _read_events(connection, path, from_sequence)


def _read_events(connection: sqlite3.Connection, path: Path, sequence: int) -> Iterator[StoredEvent]:
    """Read page by page: a log may be larger than the memory."""
    is_first = True
    while rows := _page(connection, path, sequence):
        for found, body in rows:
            if found != sequence and not is_first:
                raise _damaged(path, f"event {sequence} is missing")
            is_first, sequence = False, found + 1
            yield StoredEvent(sequence=found, event=_decoded(path, found, body))


def _page(connection: sqlite3.Connection, path: Path, sequence: int) -> list[tuple[int, str]]:
    with _reading(path):
        return connection.execute(_PAGE_OF_EVENTS, (sequence,)).fetchall()


def _decoded(path: Path, sequence: int, body: str) -> Event:
    try:
        return decode_event(json.loads(body))
    except UnsupportedVersionError as error:
        raise _from_newer(path, str(error)) from error
    except (ValueError, CodecError) as error:
        raise _damaged(path, f"event {sequence} is unreadable ({error})") from error


def _row(sequence: int, record: LogRecord) -> tuple[int, int, str]:
    return sequence, record.event.at_ms, json.dumps(encode_event(record.event), separators=(",", ":"))


def lock_state(state_dir: Path) -> int:
    """Lock the directory for this process and return the lock's descriptor; the lock ends with the process.

    Raises:
        StateLockedError: Another process holds it.
        StateUnwritableError: The directory cannot be created or written.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateUnwritableError(
            f"the state directory {state_dir} cannot be used ({error.strerror}); make it writable or choose another one"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateLockedError(
            f"another scheduler uses {state_dir}; stop it first, or choose another state directory"
        ) from error
    return descriptor


def _open(path: Path) -> sqlite3.Connection:
    with _reading(path):
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        with _reading(path):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of a new file, check those of an old one."""
    with _reading(path):
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        with _writing(connection, path):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        return
    check_format(connection, path)


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Check that a database is a whole event log of a version that this program reads.

    Raises:
        StateDamagedError: It is not whole or not an event log.
        StateFromNewerVersionError: A newer version wrote it.
    """
    with _reading(path):
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        findings = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise _damaged(path, "it is not an event log of this program")
    if version > FORMAT_VERSION:
        raise _from_newer(path, f"it has format {version}, this program reads up to {FORMAT_VERSION}")
    if findings != "ok":
        raise _damaged(path, str(findings).splitlines()[-1])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(error, path) from error


@contextmanager
def _writing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Run the body as one transaction: all of it is stored, or nothing."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise _translate(error, path) from error
        raise


def _translate(error: sqlite3.Error, path: Path) -> StateDamagedError | StateUnwritableError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StateFullError(
            f"the disk of {path.parent} is full; free some space there, the service then goes on by itself"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(error))
    return StateUnwritableError(f"{path} cannot be used ({error}); look at the disk and the directory's permissions")


def _from_newer(path: Path, finding: str) -> StateFromNewerVersionError:
    return StateFromNewerVersionError(
        f"a newer version wrote {path}: {finding}; run that version again, "
        "or restore a backup made before the upgrade into an empty state directory"
    )


def _damaged(path: Path, finding: str) -> StateDamagedError:
    return StateDamagedError(
        f"{path} is damaged: {finding}; keep the file for analysis and restore the newest backup "
        "(python -m scheduler_service restore BACKUP --state-dir DIRECTORY --force)"
    )
