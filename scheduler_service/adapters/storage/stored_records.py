"""Reading what the event log has stored: events, the newest snapshot, answered requests; and whether all is whole."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from scheduler_service.adapters.storage.event_log import (
    REMEMBERED_REQUESTS,
    AnsweredRequest,
    StoredEvent,
    StoredSnapshot,
)
from scheduler_service.adapters.storage.record_chain import Anchor, next_link, request_checksum, snapshot_checksum
from scheduler_service.adapters.storage.sqlite_faults import damaged, from_newer, reading
from scheduler_service.core.codec import decode_event
from scheduler_service.core.errors import CodecError, UnsupportedVersionError
from scheduler_service.core.events import Event
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.errors import SettingsError

# Raised with every change of the tables or of the encoding of events that an older program could not read.
# 2: a chain of checksums; older files get one when they are opened for writing.
FORMAT_VERSION = 2
# "CtnS" in ASCII: distinguishes our files from other SQLite files.
APPLICATION_ID = 0x43746E53
DATABASE_NAME = "events.sqlite3"
# Waited for the writer.
_BUSY_TIMEOUT_S = 10.0
# As bytes, so that one unreadable body does not hide which event it is.
_PAGE_OF_EVENTS = (
    "SELECT sequence, at_ms, CAST(body AS BLOB), {link} FROM events WHERE sequence >= ? ORDER BY 1 LIMIT 1000"
)
_REQUESTS = "SELECT sequence, request_id, body_sha256, answer, {checksum} FROM requests ORDER BY sequence DESC LIMIT ?"


def last_sequence(connection: sqlite3.Connection, path: Path) -> int:
    """Return the sequence of the newest event ever stored.

    Raises:
        StateDamagedError: It is not there.
    """
    rows = _select(connection, path, "SELECT value FROM counters WHERE name = 'last_sequence'")
    if not rows:
        raise damaged(path, "the number of its newest event is missing")
    return int(rows[0][0])


def stored_state_id(connection: sqlite3.Connection, path: Path) -> str:
    """Return which state a log is; empty in one of a version that gave none.

    Raises:
        StateDamagedError: It cannot be read.
    """
    if not _select(connection, path, "SELECT 1 FROM sqlite_master WHERE name = 'identity'"):
        return ""
    rows = _select(connection, path, "SELECT state_id FROM identity LIMIT 1")
    return str(rows[0][0]) if rows else ""


def latest_snapshot(connection: sqlite3.Connection, path: Path) -> StoredSnapshot | None:
    """Return the newest snapshot, or None.

    Raises:
        StateDamagedError: It is unreadable.
    """
    anchor = read_anchor(connection, path)
    columns = "sequence, body, link, checksum" if anchor is not None else "sequence, body, NULL, NULL"
    rows = _select(connection, path, f"SELECT {columns} FROM snapshots ORDER BY 1 DESC LIMIT 1")
    if not rows:
        return None
    sequence, body, link, checksum = rows[0]
    if checksum is not None and (
        not isinstance(body, bytes) or snapshot_checksum(link or b"", sequence, body) != checksum
    ):
        raise damaged(path, f"the snapshot at event {sequence} is altered: its checksum does not fit its content")
    if checksum is None and anchor is not None and sequence > anchor.sequence:
        raise damaged(path, f"the snapshot at event {sequence} has no checksum")
    if link and link_at(connection, path, sequence) not in (None, link):
        raise damaged(path, f"the snapshot at event {sequence} does not belong to the events next to it")
    try:
        return StoredSnapshot(sequence=sequence, state=json.loads(zlib.decompress(body)))
    except (zlib.error, ValueError, TypeError):
        raise damaged(path, f"the snapshot at event {sequence} is unreadable") from None


def read_anchor(connection: sqlite3.Connection, path: Path) -> Anchor | None:
    """Return where the chain begins; None in a file of a version without one.

    Raises:
        StateDamagedError: There is a chain without a beginning.
    """
    if not _select(connection, path, "SELECT 1 FROM sqlite_master WHERE name = 'chain'"):
        return None
    rows = _select(connection, path, "SELECT sequence, link FROM chain")
    if len(rows) != 1:
        raise damaged(path, "the beginning of its chain of checksums is missing")
    return Anchor(sequence=rows[0][0], link=rows[0][1])


def link_at(connection: sqlite3.Connection, path: Path, sequence: int) -> bytes | None:
    """Return the link of an event; None where it has none, or has left.

    Raises:
        StateDamagedError: It cannot be read.
    """
    anchor = read_anchor(connection, path)
    if anchor is None or sequence == anchor.sequence:
        return anchor.link if anchor is not None else None
    rows = _select(connection, path, "SELECT link FROM events WHERE sequence = ?", sequence)
    return rows[0][0] if rows else None


def newest_link(connection: sqlite3.Connection, path: Path, sequence: int) -> bytes:
    """Return the link to which the next event is linked.

    Args:
        connection: A log with a chain.
        path: Its file.
        sequence: Its newest event.

    Raises:
        StateDamagedError: That event is not there, or has none.
    """
    link = link_at(connection, path, sequence)
    if link is None:
        raise damaged(path, f"event {sequence} is missing, or has no checksum")
    return link


def answered_requests(connection: sqlite3.Connection, path: Path) -> Sequence[AnsweredRequest]:
    """Return the newest `REMEMBERED_REQUESTS` answered requests, oldest first.

    Raises:
        StateDamagedError: They are unreadable or altered.
    """
    anchor = read_anchor(connection, path)
    query = _REQUESTS.format(checksum="checksum" if anchor is not None else "NULL")
    rows = _select(connection, path, query, REMEMBERED_REQUESTS)
    for sequence, *content, checksum in rows:
        is_older = checksum is None and (anchor is None or sequence <= anchor.sequence)
        if not is_older and request_checksum(sequence, *content) != checksum:
            raise damaged(path, f"the answered request of event {sequence} is altered")
    return [
        AnsweredRequest(request_id=request_id, body_sha256=body_sha256, answer=answer)
        for _, request_id, body_sha256, answer, _ in reversed(rows)
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


def read_stored_events(state_dir: Path, *, from_sequence: int) -> Iterator[StoredEvent]:
    """Yield the kept events of a state that another process may be writing.

    Raises:
        SettingsError: There is no event log.
        StateDamagedError: It is not whole.
        StateFromNewerVersionError: A newer version wrote it.
    """
    path = state_dir / DATABASE_NAME
    if not path.is_file():
        raise SettingsError(
            f"there is no state in {state_dir}; name the folder that the scheduler serves from with --state-dir"
        )
    with reading(path):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    with closing(connection):
        check_format(connection, path)
        with reading(path):
            # One instant of the log, whatever its writer compacts meanwhile.
            connection.execute("BEGIN")
        yield from read_events(connection, path, from_sequence)


def read_events(connection: sqlite3.Connection, path: Path, sequence: int) -> Iterator[StoredEvent]:
    """Yield events from a sequence on, page by page: a log may be larger than the memory.

    Raises:
        StateDamagedError: One in between is missing, unreadable or altered.
        StateFromNewerVersionError: A newer version wrote one.
    """
    chain = _ReadChain(connection, path, sequence)
    is_first = True
    while rows := _page(connection, path, sequence, has_links=chain.anchor is not None):
        for found, at_ms, body, link in rows:
            if found != sequence and not (is_first and chain.may_begin_at(found)):
                raise damaged(path, f"event {sequence} is missing")
            is_first, sequence = False, found + 1
            event = _decoded(path, found, body)
            chain.check(found, at_ms, body, link)
            yield StoredEvent(sequence=found, event=event)


def read_silences(connection: sqlite3.Connection, path: Path, sequence: int) -> Mapping[int, PolicySilenced]:
    """Return the silences of policies among the events from a sequence on, without decoding the others.

    Raises:
        StateDamagedError: The log, or one of them, is unreadable.
    """
    with reading(path):
        rows = connection.execute(
            "SELECT sequence, CAST(body AS BLOB) FROM events"
            " WHERE sequence >= ? AND instr(CAST(body AS BLOB), CAST(? AS BLOB))",
            (sequence, PolicySilenced.__name__),
        ).fetchall()
    # Others may quote the name.
    events = (_decoded(path, found, body) for found, body in rows)
    return {event.sequence: event for event in events if isinstance(event, PolicySilenced)}


class _ReadChain:
    """Follows the links of events as they are read.

    Args:
        connection: The log.
        path: Its file.
        sequence: The first event that is wanted.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, sequence: int) -> None:
        self._path = path
        self.anchor = read_anchor(connection, path)
        self._previous = link_at(connection, path, sequence - 1)

    def may_begin_at(self, sequence: int) -> bool:
        """Say whether all events before may have left."""
        return self.anchor is None or sequence <= self.anchor.sequence + 1

    def check(self, sequence: int, at_ms: int, body: bytes, link: bytes | None) -> None:
        """Compare an event with its link and the one before.

        Raises:
            StateDamagedError: They do not fit.
        """
        if self.anchor is None:
            return
        if self._previous is None and sequence == self.anchor.sequence + 1:
            self._previous = self.anchor.link
        if link is None and sequence > self.anchor.sequence:
            raise damaged(self._path, f"event {sequence} has no checksum")
        previous, self._previous = self._previous, link
        if None in (previous, link) or next_link(previous or b"", sequence, at_ms, body) == link:
            return
        finding = "is altered, or is not the one that followed: its checksum does not fit"
        raise damaged(self._path, f"event {sequence} {finding}")


def _page(
    connection: sqlite3.Connection, path: Path, sequence: int, *, has_links: bool
) -> list[tuple[int, int, bytes, bytes | None]]:
    with reading(path):
        query = _PAGE_OF_EVENTS.format(link="link" if has_links else "NULL")
        return connection.execute(query, (sequence,)).fetchall()


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
