"""A lost database is not a first start: the marker distinguishes them, and locks no user out."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scheduler_service.adapters.storage import state_marker
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up, restore
from scheduler_service.adapters.storage.state_marker import MARKER_NAME, read_marker
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.core.events import JobSubmitted, TimerFired
from scheduler_service.core.records import JobRequest
from scheduler_service.errors import StateError, StateFullError, StateMissingError


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def a_job(number: int = 1) -> LogRecord:
    return LogRecord(event=JobSubmitted(at_ms=number, request=JobRequest(job_id=f"job-{number}"), launch={}))


def used(state_dir: Path, jobs: int = 1) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append([a_job(number) for number in range(1, jobs + 1)])


def newest_event(state_dir: Path) -> int:
    with closing(SqliteEventLog(state_dir)) as log:
        return log.last_sequence()


def delete(database: Path) -> None:
    database.unlink()


def empty(database: Path) -> None:
    database.write_bytes(b"")


def without_tables(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def of_another_state(database: Path) -> None:
    database.unlink()
    used(database.parent.with_name("other"), jobs=3)
    shutil.copyfile(database.parent.with_name("other") / DATABASE_NAME, database)


def of_an_older_version(database: Path) -> None:
    of_another_state(database)
    make_older(database)


def make_older(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE identity")


@pytest.mark.parametrize("lose", [delete, empty, without_tables, of_another_state, of_an_older_version])
def test_a_marker_without_its_database_is_refused_with_the_remedy(
    state_dir: Path, lose: Callable[[Path], None]
) -> None:
    used(state_dir)
    lose(state_dir / DATABASE_NAME)
    content = (state_dir / DATABASE_NAME).read_bytes() if (state_dir / DATABASE_NAME).exists() else None
    for _ in range(2):
        with pytest.raises(StateMissingError, match=rf"restore BACKUP --state-dir {state_dir} --force"):
            SqliteEventLog(state_dir)
    # Nothing was put in its place.
    assert ((state_dir / DATABASE_NAME).read_bytes() if content is not None else None) == content


@pytest.mark.parametrize("lose", [delete, empty, without_tables, of_another_state])
def test_a_restore_works_where_a_start_is_refused(
    state_dir: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    used(state_dir, jobs=2)
    back_up(state_dir, tmp_path / "backup")
    before = read_marker(state_dir)
    lose(state_dir / DATABASE_NAME)
    restore(tmp_path / "backup", state_dir, force=True)
    assert newest_event(state_dir) == 2
    assert read_marker(state_dir) not in (before, None, "")


def test_a_write_ahead_log_without_its_database_is_kept_and_refused(state_dir: Path, tmp_path: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append([a_job()])
        shutil.copytree(state_dir, tmp_path / "crashed")
    (tmp_path / "crashed" / MARKER_NAME).unlink()  # as an older version leaves it
    empty(tmp_path / "crashed" / DATABASE_NAME)
    with pytest.raises(StateMissingError):
        SqliteEventLog(tmp_path / "crashed")
    assert (tmp_path / "crashed" / f"{DATABASE_NAME}-wal").stat().st_size > 0


def test_a_first_start_needs_no_ceremony_however_early_it_ends(state_dir: Path) -> None:
    SqliteEventLog(state_dir).close()
    assert read_marker(state_dir) is None
    for spoil in (delete, empty, without_tables):
        spoil(state_dir / DATABASE_NAME)
        with closing(SqliteEventLog(state_dir)) as log:
            log.append([LogRecord(event=TimerFired(at_ms=1))])
        assert read_marker(state_dir) is None


def test_the_marker_is_on_the_disk_before_the_first_job(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    with closing(SqliteEventLog(state_dir)) as log:
        monkeypatch.setattr(os, "fsync", note)
        log.append([LogRecord(event=TimerFired(at_ms=1))])
        assert synced == []
        log.append([a_job()])
        # The file under its first name, then the folder that holds its last one.
        assert synced == [f"{MARKER_NAME}.arriving", state_dir.name]
        log.append([a_job(2)])
        assert len(synced) == 2
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection:
        assert connection.execute("SELECT state_id FROM identity").fetchall() == [(read_marker(state_dir),)]


def test_a_kill_between_marker_and_first_job_locks_no_user_out(state_dir: Path, tmp_path: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.mark_used()
        shutil.copytree(state_dir, tmp_path / "killed")
    assert newest_event(tmp_path / "killed") == 0


def test_a_job_is_refused_when_the_marker_finds_no_room(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with closing(SqliteEventLog(state_dir)) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StateFullError, match="free some space"):
                log.append([a_job()])
        assert log.last_sequence() == 0
        assert sorted(path.name for path in state_dir.iterdir() if "state" in path.name) == []
        assert log.append([a_job()]) == 1
    assert read_marker(state_dir)


def test_an_older_state_gets_its_id_and_its_marker(state_dir: Path) -> None:
    used(state_dir)
    (state_dir / MARKER_NAME).unlink()
    make_older(state_dir / DATABASE_NAME)
    with closing(SqliteEventLog(state_dir)) as log:
        assert log.last_sequence() == 1
        log.mark_used()
    first = read_marker(state_dir)
    assert first
    assert newest_event(state_dir) == 1
    assert read_marker(state_dir) == first


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state_id": 7}', b"\xff\xfe", b"[" * 5_000])
def test_a_spoiled_marker_locks_no_user_out_but_still_guards(state_dir: Path, content: bytes) -> None:
    used(state_dir)
    (state_dir / MARKER_NAME).write_bytes(content)
    with closing(SqliteEventLog(state_dir)) as log:
        log.mark_used()
    assert json.loads((state_dir / MARKER_NAME).read_text())["state_id"]
    (state_dir / MARKER_NAME).write_bytes(content)
    delete(state_dir / DATABASE_NAME)
    with pytest.raises(StateMissingError):
        SqliteEventLog(state_dir)


def test_a_marker_that_cannot_be_read_is_named(state_dir: Path) -> None:
    used(state_dir)
    (state_dir / MARKER_NAME).unlink()
    (state_dir / MARKER_NAME).mkdir()
    with pytest.raises(StateError, match=MARKER_NAME):
        SqliteEventLog(state_dir)


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_restore_that_is_killed_in_the_middle_can_be_repeated(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    used(state_dir, jobs=2)
    back_up(state_dir, tmp_path / "backup")
    rename = Path.replace
    done: list[Path] = []

    def killed(path: Path, target: Path) -> Path:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(tmp_path / "backup", state_dir, force=True)
    if renames == 0:
        assert newest_event(state_dir) == 2  # nothing was changed yet
    else:
        with pytest.raises(StateMissingError, match="restore"):
            SqliteEventLog(state_dir)
    restore(tmp_path / "backup", state_dir, force=True)
    assert newest_event(state_dir) == 2


def test_a_backup_needs_no_marker_and_its_restore_elsewhere_has_its_own(state_dir: Path, tmp_path: Path) -> None:
    used(state_dir)
    original = read_marker(state_dir)
    (state_dir / MARKER_NAME).unlink()
    back_up(state_dir, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "elsewhere", force=False)
    assert newest_event(tmp_path / "elsewhere") == 1
    assert read_marker(tmp_path / "elsewhere") not in (original, None, "")


def test_a_backup_of_an_older_version_can_be_restored(state_dir: Path, tmp_path: Path) -> None:
    used(state_dir)
    make_older(state_dir / DATABASE_NAME)
    back_up(state_dir, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "elsewhere", force=False)
    assert newest_event(tmp_path / "elsewhere") == 1


def test_the_marker_is_written_by_replacement(state_dir: Path) -> None:
    state_dir.mkdir()
    state_marker.write_marker(state_dir, "a")
    state_marker.write_marker(state_dir, "b")
    assert read_marker(state_dir) == "b"
    assert [path.name for path in state_dir.iterdir()] == [MARKER_NAME]
