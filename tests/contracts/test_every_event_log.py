"""What every event log promises, and what only the one on disk can: to survive."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from scheduler_service.adapters.storage.event_log import AnsweredRequest, EventLog, LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.log_head import HEAD_ENDING
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import MANIFEST_NAME, back_up, restore
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME, FORMAT_VERSION
from scheduler_service.core.events import Event, JobSubmitted, TimerFired
from scheduler_service.core.records import JobRequest
from scheduler_service.errors import (
    RestoreRefusedError,
    SettingsError,
    StateDamagedError,
    StateFromNewerVersionError,
    StateLockedError,
    StateUnwritableError,
)
from tests.support.live_loop import MemoryEventLog


def submitted(number: int) -> JobSubmitted:
    return JobSubmitted(at_ms=number, request=JobRequest(job_id=f"job-{number}"), launch={"command": ["true"]})


def records(first: int, last: int) -> list[LogRecord]:
    return [LogRecord(event=submitted(number)) for number in range(first, last + 1)]


def stored_events(log: EventLog, sequence: int = 1) -> list[tuple[int, Event]]:
    return [(stored.sequence, stored.event) for stored in log.read_from(sequence)]


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    made: EventLog = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path)
    yield made
    made.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def filled(state_dir: Path, count: int = 10) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(1, count))


def test_a_new_log_is_empty(log: EventLog) -> None:
    assert (log.last_sequence(), stored_events(log), log.latest_snapshot()) == (0, [], None)
    assert list(log.answered_requests()) == []


def test_events_come_back_in_order_with_growing_sequences(log: EventLog) -> None:
    assert log.append(records(1, 3)) == 3
    assert log.append([LogRecord(event=TimerFired(at_ms=9))]) == 4
    assert stored_events(log) == [(n, submitted(n)) for n in (1, 2, 3)] + [(4, TimerFired(at_ms=9))]
    assert stored_events(log, 3) == [(3, submitted(3)), (4, TimerFired(at_ms=9))]
    assert log.last_sequence() == 4


def test_requests_are_remembered_with_their_events(log: EventLog) -> None:
    answered = [AnsweredRequest(request_id=f"r{n}", body_sha256="ab", answer=f"job-{n}") for n in (1, 2)]
    log.append([LogRecord(event=submitted(n), request=request) for n, request in enumerate(answered, start=1)])
    assert list(log.answered_requests()) == answered


def test_a_request_that_was_forgotten_may_be_made_anew(log: EventLog) -> None:
    for answer in ("job-1", "job-2"):
        request = AnsweredRequest(request_id="r", body_sha256=answer, answer=answer)
        log.append([LogRecord(event=submitted(1), request=request)])
    assert [request.answer for request in log.answered_requests()] == ["job-2"]


def test_the_newest_snapshot_counts_and_old_events_leave(log: EventLog) -> None:
    log.append(records(1, 10))
    log.store_snapshot(StoredSnapshot(sequence=4, state={"jobs": 4}), retained_events=1_000)
    assert len(stored_events(log)) == 10
    log.store_snapshot(StoredSnapshot(sequence=8, state={"jobs": 8}), retained_events=5)
    assert log.latest_snapshot() == StoredSnapshot(sequence=8, state={"jobs": 8})
    assert stored_events(log) == [(n, submitted(n)) for n in range(6, 11)]


def test_events_after_the_snapshot_never_leave(log: EventLog) -> None:
    log.append(records(1, 10))
    log.store_snapshot(StoredSnapshot(sequence=3, state={}), retained_events=0)
    assert [sequence for sequence, _ in stored_events(log)] == list(range(4, 11))
    assert log.append(records(11, 11)) == 11


def test_events_may_be_appended_while_a_snapshot_is_stored(log: EventLog) -> None:
    log.append(records(1, 3_000))
    with ThreadPoolExecutor(1) as compaction:
        storing = compaction.submit(
            lambda: log.store_snapshot(StoredSnapshot(sequence=3_000, state={"jobs": 3_000}), retained_events=10)
        )
        for number in range(3_001, 3_101):
            assert log.append(records(number, number)) == number
        storing.result(timeout=60)
    found = stored_events(log)
    assert found[-1][0] == 3_100
    assert [sequence for sequence, _ in found] == list(range(found[0][0], 3_101))
    assert found[0][0] >= 2_991
    assert log.latest_snapshot() == StoredSnapshot(sequence=3_000, state={"jobs": 3_000})


def test_everything_is_there_after_a_reopen(state_dir: Path) -> None:
    request = AnsweredRequest(request_id="r", body_sha256="cd", answer="job-1")
    with closing(SqliteEventLog(state_dir)) as log:
        log.append([LogRecord(event=submitted(1), request=request)])
        log.store_snapshot(StoredSnapshot(sequence=1, state={"a": [1, "x"]}), retained_events=9)
    with closing(SqliteEventLog(state_dir)) as log:
        assert stored_events(log) == [(1, submitted(1))]
        assert list(log.answered_requests()) == [request]
        assert log.latest_snapshot() == StoredSnapshot(sequence=1, state={"a": [1, "x"]})
        assert log.append(records(2, 2)) == 2


def test_sequences_go_on_although_every_event_has_left(state_dir: Path) -> None:
    filled(state_dir, 3)
    with closing(SqliteEventLog(state_dir)) as log:
        log.store_snapshot(StoredSnapshot(sequence=3, state={}), retained_events=0)
    with closing(SqliteEventLog(state_dir)) as log:
        assert log.last_sequence() == 3
        assert log.append(records(4, 4)) == 4


def test_an_append_that_fails_in_the_middle_stores_nothing(state_dir: Path) -> None:
    impossible = AnsweredRequest(request_id="r", body_sha256="ab", answer=cast("str", None))
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(1, 1))
        with pytest.raises(StateUnwritableError, match="NOT NULL"):
            log.append([LogRecord(event=submitted(2)), LogRecord(event=submitted(3), request=impossible)])
        assert stored_events(log) == [(1, submitted(1))]
        assert log.append(records(2, 2)) == 2


@pytest.mark.parametrize("torn_bytes", [1, 100, 4_000])
def test_a_torn_last_write_costs_that_write_only(state_dir: Path, tmp_path: Path, torn_bytes: int) -> None:
    crashed = tmp_path / "crashed"
    head = f"{DATABASE_NAME}{HEAD_ENDING}"
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(1, 1))
        before = (state_dir / head).read_bytes()
        log.append(records(2, 2))
        # What the disk holds at a crash: the files of a log that was never closed.
        shutil.copytree(state_dir, crashed)
    # An event is noted after its write: one whose write was torn was not.
    (crashed / head).write_bytes(before)
    write_ahead = crashed / f"{DATABASE_NAME}-wal"
    with write_ahead.open("r+b") as stream:
        stream.truncate(write_ahead.stat().st_size - torn_bytes)
    with closing(SqliteEventLog(crashed)) as log:
        assert stored_events(log) == [(1, submitted(1))]
        assert log.append(records(2, 2)) == 2


def test_a_crash_without_a_torn_write_costs_nothing(state_dir: Path, tmp_path: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(1, 5))
        shutil.copytree(state_dir, tmp_path / "crashed")
    with closing(SqliteEventLog(tmp_path / "crashed")) as log:
        assert len(stored_events(log)) == 5


@pytest.mark.parametrize(("offset", "length"), [(0, 64), (4096, 4096), (8192, 512)])
def test_a_damaged_file_is_named_with_the_remedy(state_dir: Path, offset: int, length: int) -> None:
    filled(state_dir, 500)
    path = state_dir / DATABASE_NAME
    content = bytearray(path.read_bytes())
    content[offset : offset + length] = b"\xa5" * length
    path.write_bytes(content)
    with pytest.raises(StateDamagedError, match=r"restore BACKUP"):
        SqliteEventLog(state_dir)


def test_a_missing_event_is_noticed(state_dir: Path) -> None:
    filled(state_dir)
    change(state_dir, "DELETE FROM events WHERE sequence = 5")
    with closing(SqliteEventLog(state_dir)) as log, pytest.raises(StateDamagedError, match="event 5 is missing"):
        list(log.read_from(1))


def test_an_unreadable_event_is_noticed(state_dir: Path) -> None:
    filled(state_dir)
    change(state_dir, 'UPDATE events SET body = \'{"kind": "JobSubmitted"\' WHERE sequence = 7')
    with closing(SqliteEventLog(state_dir)) as log, pytest.raises(StateDamagedError, match="event 7 is unreadable"):
        list(log.read_from(1))


def test_a_foreign_database_is_refused(state_dir: Path) -> None:
    state_dir.mkdir()
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection:
        connection.execute("CREATE TABLE cats (name)")
    with pytest.raises(StateDamagedError, match="not an event log"):
        SqliteEventLog(state_dir)


def test_a_downgrade_is_refused_with_the_remedy(state_dir: Path) -> None:
    filled(state_dir)
    change(state_dir, f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(StateFromNewerVersionError, match=r"run that version again.*backup"):
        SqliteEventLog(state_dir)


def test_an_event_of_a_newer_version_is_refused(state_dir: Path) -> None:
    filled(state_dir, 1)
    change(state_dir, "UPDATE events SET body = replace(body, '\"format\":1', '\"format\":99')")
    with closing(SqliteEventLog(state_dir)) as log, pytest.raises(StateFromNewerVersionError, match="newer version"):
        list(log.read_from(1))


def test_two_schedulers_cannot_share_a_state(state_dir: Path) -> None:
    with closing(SqliteEventLog(state_dir)), pytest.raises(StateLockedError, match="another scheduler uses"):
        SqliteEventLog(state_dir)
    SqliteEventLog(state_dir).close()


def change(state_dir: Path, statement: str) -> None:
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection, connection:
        connection.execute(statement)


# --- backup and restore ----------------------------------------------------------------------------------------------


def test_a_backup_of_an_open_log_restores_to_the_same_events(state_dir: Path, tmp_path: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(1, 20))
        manifest = back_up(state_dir, tmp_path / "backup")
        log.append(records(21, 21))
    assert manifest["last_sequence"] == 20
    assert restore(tmp_path / "backup", tmp_path / "restored", force=False) == manifest
    with closing(SqliteEventLog(tmp_path / "restored")) as log:
        assert stored_events(log) == [(n, submitted(n)) for n in range(1, 21)]


def test_a_restore_overwrites_only_when_forced_and_keeps_the_old_state(state_dir: Path, tmp_path: Path) -> None:
    filled(state_dir, 2)
    back_up(state_dir, tmp_path / "backup")
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(3, 3))
    with pytest.raises(RestoreRefusedError, match="--force"):
        restore(tmp_path / "backup", state_dir, force=False)
    restore(tmp_path / "backup", state_dir, force=True)
    with closing(SqliteEventLog(state_dir)) as log:
        assert log.last_sequence() == 2
    assert (state_dir / f"{DATABASE_NAME}.replaced").exists()


def test_a_restore_under_a_running_scheduler_is_refused(state_dir: Path, tmp_path: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(1, 1))
        back_up(state_dir, tmp_path / "backup")
        with pytest.raises(StateLockedError):
            restore(tmp_path / "backup", state_dir, force=True)


def changed_manifest(backup: Path) -> None:
    manifest = json.loads((backup / MANIFEST_NAME).read_text())
    (backup / MANIFEST_NAME).write_text(json.dumps(manifest | {"schema": "other/9"}))


def changed_copy(backup: Path) -> None:
    copy = backup / DATABASE_NAME
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")


def missing_manifest(backup: Path) -> None:
    (backup / MANIFEST_NAME).unlink()


@pytest.mark.parametrize("spoil", [changed_manifest, changed_copy, missing_manifest])
def test_a_spoiled_backup_is_refused_and_the_state_stays(
    state_dir: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    filled(state_dir, 2)
    back_up(state_dir, tmp_path / "backup")
    spoil(tmp_path / "backup")
    with pytest.raises(RestoreRefusedError, match="another"):
        restore(tmp_path / "backup", state_dir, force=True)
    with closing(SqliteEventLog(state_dir)) as log:
        assert log.last_sequence() == 2


def test_a_backup_needs_a_state_and_a_new_folder(state_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no state"):
        back_up(state_dir, tmp_path / "backup")
    filled(state_dir, 1)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(SettingsError, match="no empty folder"):
        back_up(state_dir, tmp_path / "used")
