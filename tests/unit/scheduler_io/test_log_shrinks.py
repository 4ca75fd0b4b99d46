"""What compaction frees leaves the disk too."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from scheduler_service.adapters.storage.event_log import LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.core.events import JobSubmitted
from scheduler_service.core.records import JobRequest

EVENTS = 4_000


def fill(log: SqliteEventLog) -> None:
    event = JobSubmitted(at_ms=1, request=JobRequest(job_id="job-1"), launch={"command": ["x" * 2_000]})
    log.append([LogRecord(event=event)] * EVENTS)


def test_the_file_shrinks_after_compaction(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    with closing(SqliteEventLog(tmp_path)) as log:
        fill(log)
        log.store_snapshot(StoredSnapshot(sequence=1, state={}), retained_events=EVENTS)
        full_bytes = path.stat().st_size
        log.store_snapshot(StoredSnapshot(sequence=EVENTS, state={}), retained_events=10)
        shrunk_bytes = path.stat().st_size
        assert [stored.sequence for stored in log.read_from(EVENTS - 9)] == list(range(EVENTS - 9, EVENTS + 1))
    assert full_bytes > EVENTS * 2_000
    assert shrunk_bytes < full_bytes / 4


def test_the_file_of_an_older_version_shrinks_too(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    with closing(SqliteEventLog(tmp_path)) as log:
        fill(log)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
    with closing(SqliteEventLog(tmp_path)) as log:
        log.store_snapshot(StoredSnapshot(sequence=EVENTS, state={}), retained_events=10)
        assert path.stat().st_size < EVENTS * 2_000 / 4
