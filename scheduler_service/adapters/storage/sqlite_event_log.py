"""The event log in SQLite: WAL with synchronous=FULL, so that an answered append survives a power cut.

One writer. The live loop hands in whatever has gathered since the last commit, so many callers share one flush.
A transaction that was torn by a crash is dropped by SQLite's own checksums when the file is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cotenant.folder_sync import sync_folder
from scheduler_service.adapters.storage.event_log import (
    REMEMBERED_REQUESTS,
    AnsweredRequest,
    LogRecord,
    StoredEvent,
    StoredSnapshot,
)
from scheduler_service.adapters.storage.file_shrinking import convert_old_file, give_pages_back, let_shrink
from scheduler_service.adapters.storage.log_head import HEAD_ENDING, HeadFile, check_head, head_path, read_head
from scheduler_service.adapters.storage.log_upgrade import begin_chain, upgrade
from scheduler_service.adapters.storage.private_files import create_private, make_private
from scheduler_service.adapters.storage.record_chain import next_link, request_checksum, snapshot_checksum
from scheduler_service.adapters.storage.snapshot_text import write_json
from scheduler_service.adapters.storage.sqlite_faults import reading, strict_text, writing
from scheduler_service.adapters.storage.state_marker import (
    MARKER_NAME,
    another_state,
    new_state_id,
    read_marker,
    state_missing,
    write_marker,
)
from scheduler_service.adapters.storage.stored_identity import StoredIdentity
from scheduler_service.adapters.storage.stored_records import (
    APPLICATION_ID,
    DATABASE_NAME,
    answered_requests,
    check_format,
    last_sequence,
    latest_snapshot,
    link_at,
    newest_link,
    read_anchor,
    read_events,
    read_silences,
    stored_state_id,
)
from scheduler_service.core.codec import encode_event
from scheduler_service.core.engine_snapshot import Pace
from scheduler_service.core.events import JobSubmitted
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.errors import StateLockedError, StateUnwritableError

LOCK_NAME = "scheduler.lock"
_KEPT_SNAPSHOTS = 2
# In one transaction, for which an append may have to wait.
_DELETED_EVENTS_AT_ONCE = 1_000
# Next to the database; SQLite gives them the database's mode, older versions may have given more.
_FILES_BESIDE = (
    "-wal",
    "-shm",
    "-journal",
    ".arriving",
    *(".replaced" + end for end in ("", "-wal", "-shm", HEAD_ENDING)),
)
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
# Older states lack it. The id is what the marker names.
_IDENTITY = "CREATE TABLE IF NOT EXISTS identity (state_id TEXT NOT NULL) STRICT"


class SqliteEventLog:
    """Stores facts in one SQLite file of a state directory, which it locks; see `EventLog` for the contract.

    Args:
        state_dir: Created with mode 0700 where it is missing.
        pace: Of writing snapshots, which a thread next to the event loop does.

    Attributes:
        identity: Which cluster this state is; written by the writer of the events.

    Raises:
        StateLockedError: Another scheduler uses the directory.
        StateFromNewerVersionError: A newer version wrote the file.
        StateMissingError: Jobs were accepted in the directory, but their database is not there.
        StateDamagedError: The file is not whole or not ours.
        StateUnwritableError: The directory cannot be written.
    """

    def __init__(self, state_dir: Path, *, pace: Pace = iter) -> None:
        self._path, self._pace = state_dir / DATABASE_NAME, pace
        self._lock_descriptor = lock_state(state_dir)
        # Between the transactions of an append and of a snapshot, which two threads may make.
        self._turn = threading.Lock()
        try:
            marked_id = read_marker(state_dir)
            _check_presence(self._path, is_marked=marked_id is not None)
            self._connection = _open(self._path, is_marked=marked_id is not None)
            self._state_id = self._read_state_id(marked_id)
            self._is_marked = self._state_id == marked_id
            self._last_sequence = last_sequence(self._connection, self._path)
            self.identity = StoredIdentity(self._connection, self._path, state_id=self._state_id)
            self._link = newest_link(self._connection, self._path, self._last_sequence)
            check_head(self._connection, self._path, self._last_sequence, read_head(self._path))
            self._head = _open_head(self._path, self._state_id)
            self._head.write(self._last_sequence, self._link)
        except BaseException:
            os.close(self._lock_descriptor)
            raise

    def append(self, records: Sequence[LogRecord]) -> int:
        """Store all records in one transaction; see `EventLog.append`."""
        if any(isinstance(record.event, JobSubmitted) for record in records):
            # Before the job: a client with its confirmation can rely on its loss being noticed.
            self.mark_used()
        first = self._last_sequence + 1
        last = self._last_sequence + len(records)
        rows = _linked_rows(self._link, first, records)
        with self._turn, writing(self._connection, self._path):
            self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
            self._connection.executemany(
                # The live loop remembers fewer requests than are kept here until the next snapshot.
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?)",
                [
                    _request_row(sequence, record.request)
                    for sequence, record in enumerate(records, start=first)
                    if record.request is not None
                ],
            )
            self._connection.execute("UPDATE counters SET value = ? WHERE name = 'last_sequence'", (last,))
        self._last_sequence = last
        if rows:
            self._link = rows[-1][3]
        self._head.write(last, self._link)
        return last

    def mark_used(self) -> None:
        """Note durably that jobs were accepted here: from now on a directory without this database is refused.

        Raises:
            StateUnwritableError: The marker cannot be written.
        """
        if not self._is_marked:
            write_marker(self._path.parent, self._state_id)
            self._is_marked = True

    def last_sequence(self) -> int:
        """Return the newest sequence; see `EventLog.last_sequence`."""
        return self._last_sequence

    def read_from(self, sequence: int) -> Iterator[StoredEvent]:
        """Yield stored events; see `EventLog.read_from`."""
        return read_events(self._connection, self._path, sequence)

    def silences_from(self, sequence: int) -> Mapping[int, PolicySilenced]:
        """Return the silences of policies; see `EventLog.silences_from`."""
        return read_silences(self._connection, self._path, sequence)

    def store_snapshot(self, snapshot: StoredSnapshot, *, retained_events: int) -> None:
        """Store the snapshot, drop old events in small transactions; see `EventLog.store_snapshot`."""
        body = zlib.compress(write_json(snapshot.state, self._pace))
        with self._turn, writing(self._connection, self._path):
            link = link_at(self._connection, self._path, snapshot.sequence)
            self._connection.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)",
                (snapshot.sequence, body, link, snapshot_checksum(link or b"", snapshot.sequence, body)),
            )
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
        give_pages_back(self._connection, self._path, self._turn)

    def latest_snapshot(self) -> StoredSnapshot | None:
        """Return the newest snapshot; see `EventLog.latest_snapshot`."""
        return latest_snapshot(self._connection, self._path)

    def answered_requests(self) -> Sequence[AnsweredRequest]:
        """Return the remembered requests; see `EventLog.answered_requests`."""
        return answered_requests(self._connection, self._path)

    def close(self) -> None:
        """Close the file and unlock the directory."""
        with self._turn:
            self._head.close()
            self._connection.close()
        os.close(self._lock_descriptor)

    def _read_state_id(self, marked_id: str | None) -> str:
        """Return which state this is; it must be the marked one where a readable marker names one."""
        state_id = stored_state_id(self._connection, self._path)
        if not state_id or (marked_id and marked_id != state_id):
            raise another_state(self._path)
        return state_id

    def _delete_events_before(self, sequence: int) -> None:
        self._move_anchor(sequence - 1)
        deleted = _DELETED_EVENTS_AT_ONCE
        while deleted == _DELETED_EVENTS_AT_ONCE:
            with self._turn, writing(self._connection, self._path):
                deleted = self._connection.execute(
                    "DELETE FROM events WHERE sequence IN"
                    " (SELECT sequence FROM events WHERE sequence < ? ORDER BY 1 LIMIT ?)",
                    (sequence, _DELETED_EVENTS_AT_ONCE),
                ).rowcount

    def _move_anchor(self, sequence: int) -> None:
        """Let the chain begin after an event that is about to leave."""
        anchor = read_anchor(self._connection, self._path)
        link = link_at(self._connection, self._path, sequence)
        if anchor is None or sequence <= anchor.sequence or link is None:
            return
        with self._turn, writing(self._connection, self._path):
            self._connection.execute("UPDATE chain SET sequence = ?, link = ?", (sequence, link))


# Kept: to make one anew for each event costs as much as the event's checksum.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def _linked_rows(previous: bytes, first: int, records: Sequence[LogRecord]) -> list[tuple[int, int, str, bytes]]:
    rows = []
    for sequence, record in enumerate(records, start=first):
        at_ms, body = record.event.at_ms, _encode(encode_event(record.event))
        previous = next_link(previous, sequence, at_ms, body.encode())
        rows.append((sequence, at_ms, body, previous))
    return rows


def _request_row(sequence: int, request: AnsweredRequest) -> tuple[str, int, str, str, bytes | None]:
    content = (request.request_id, request.body_sha256, request.answer)
    # What is no text is refused by the table itself, and with it the whole append.
    checksum = request_checksum(sequence, *content) if all(isinstance(text, str) for text in content) else None
    return request.request_id, sequence, request.body_sha256, request.answer, checksum


def _open_head(path: Path, state_id: str) -> HeadFile:
    try:
        return HeadFile(path, state_id)
    except OSError as error:
        raise StateUnwritableError(
            f"{head_path(path)} cannot be used ({error.strerror}); look at the disk and the directory's permissions"
        ) from error


def lock_state(state_dir: Path) -> int:
    """Lock the directory for this process and return the lock's descriptor; the lock ends with the process.

    Raises:
        StateLockedError: Another process holds it.
        StateUnwritableError: The directory cannot be created or written.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = create_private(state_dir / LOCK_NAME, flags=os.O_CREAT)
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


def _check_presence(path: Path, *, is_marked: bool) -> None:
    """Look for a lost database before SQLite makes a new one, and removes the write-ahead log of the lost one."""
    if path.exists() and path.stat().st_size > 0:
        return
    write_ahead = path.with_name(f"{path.name}-wal")
    if is_marked or (write_ahead.exists() and write_ahead.stat().st_size > 0):
        raise state_missing(path.parent, f"{path.name} is {'empty' if path.exists() else 'missing'}")


def _open(path: Path, *, is_marked: bool) -> sqlite3.Connection:
    _make_files_private(path)
    with reading(path):
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = strict_text
    try:
        with reading(path):
            let_shrink(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path, is_marked=is_marked)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_files_private(path: Path) -> None:
    """Create the file where it is missing, so that no other user could ever read it; SQLite copies its mode."""
    is_new = not path.exists()
    try:
        os.close(create_private(path, flags=os.O_CREAT))
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise StateUnwritableError(
            f"{path} cannot be used ({error.strerror}); look at the disk and the directory's permissions"
        ) from error
    for name in (MARKER_NAME, *(path.name + ending for ending in _FILES_BESIDE)):
        make_private(path.with_name(name))


def _prepare(connection: sqlite3.Connection, path: Path, *, is_marked: bool) -> None:
    """Create the tables of a new file, check those of an old one."""
    with reading(path):
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0 and is_marked:
        raise state_missing(path.parent, f"{path.name} holds none of them")
    if tables > 0:
        check_format(connection, path)
        _identify(connection, path, is_marked=is_marked)
        upgrade(connection, path)
        convert_old_file(connection, path)
        return
    with writing(connection, path):
        for statement in (*_SCHEMA.split(";"), _IDENTITY):
            connection.execute(statement)
        begin_chain(connection, 0)
        connection.execute("INSERT INTO identity VALUES (?)", (new_state_id(),))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _identify(connection: sqlite3.Connection, path: Path, *, is_marked: bool) -> None:
    """Give an older state its id; one that lacks it next to a marker is not the state that was marked."""
    with reading(path):
        (known,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'identity'").fetchone()
    if not known and is_marked:
        raise another_state(path)
    if not known:
        set_state_id(connection, path, new_state_id())


def read_state_id(connection: sqlite3.Connection, path: Path) -> str:
    """Return which state a database is; empty = one of an older version.

    Raises:
        StateError: It cannot be read.
    """
    with reading(path):
        tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'identity'").fetchall()
        rows = connection.execute("SELECT state_id FROM identity LIMIT 1").fetchall() if tables else ()
    return str(rows[0][0]) if rows else ""


def set_state_id(connection: sqlite3.Connection, path: Path, state_id: str) -> None:
    """Record in the database which state it is.

    Raises:
        StateError: It cannot be written.
    """
    with writing(connection, path):
        connection.execute(_IDENTITY)
        connection.execute("DELETE FROM identity")
        connection.execute("INSERT INTO identity VALUES (?)", (state_id,))
