"""The event log proves itself: what was altered, removed or cut off is told as what it is, without its content."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler_service.adapters.storage.event_log import AnsweredRequest, LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.log_head import head_path
from scheduler_service.adapters.storage.log_verification import verify_log
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up, restore
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.commands.main import cli
from scheduler_service.core.events import JobSubmitted
from scheduler_service.core.records import JobRequest
from scheduler_service.errors import RestoreRefusedError, SettingsError, StateDamagedError
from tests.goldens.write_goldens import GOLDENS

SECRET = "hunter2"


def records(first: int, last: int) -> list[LogRecord]:
    return [
        LogRecord(
            event=JobSubmitted(
                at_ms=number, request=JobRequest(job_id=f"job-{number}"), launch={"environment": {"PASSWORD": SECRET}}
            ),
            request=AnsweredRequest(request_id=f"r-{number}", body_sha256="ab", answer=f"job-{number}"),
        )
        for number in range(first, last + 1)
    ]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Forty events with a snapshot at the twentieth, closed, so that all is in one file."""
    folder = tmp_path / "state"
    with closing(SqliteEventLog(folder)) as log:
        log.append(records(1, 20))
        log.store_snapshot(StoredSnapshot(sequence=20, state={"jobs": 20}), retained_events=15)
        log.append(records(21, 40))
    return folder


def change(state_dir: Path, *statements: str) -> None:
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def started(state_dir: Path) -> None:
    """All that a start reads."""
    with closing(SqliteEventLog(state_dir)) as log:
        log.latest_snapshot()
        log.answered_requests()
        list(log.read_from(21))


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(StateDamagedError) as caught:
        act()
    message = caught.value.message
    assert SECRET not in message
    assert "restore" in message
    return message


CHANGES: dict[str, tuple[str, ...]] = {
    "event 30 is altered": ("UPDATE events SET body = replace(body, 'job-30', 'job-31') WHERE sequence = 30",),
    "event 31 is altered": ("UPDATE events SET at_ms = at_ms + 1 WHERE sequence = 31",),
    "event 32 is missing": ("DELETE FROM events WHERE sequence = 32",),
    "event 33 is altered, or is not the one that followed": (
        "DELETE FROM events WHERE sequence = 33",
        "UPDATE events SET sequence = sequence - 1 WHERE sequence > 33",
        "UPDATE counters SET value = 39",
    ),
    "event 34 has no checksum": ("UPDATE events SET link = NULL WHERE sequence = 34",),
    "event 40 is missing": ("DELETE FROM events WHERE sequence = 40",),
    "the snapshot at event 20 is altered": ("UPDATE snapshots SET body = zeroblob(length(body))",),
    "the snapshot at event 21 is altered": ("UPDATE snapshots SET sequence = 21",),
    "the answered request of event 35 is altered": ("UPDATE requests SET answer = 'job-1' WHERE sequence = 35",),
    "the beginning of its chain of checksums is missing": ("DELETE FROM chain",),
}


@pytest.mark.parametrize("finding", CHANGES)
@pytest.mark.parametrize("use", [started, verify_log])
def test_what_was_changed_is_named(state_dir: Path, finding: str, use: Callable[[Path], object]) -> None:
    head_path(state_dir / DATABASE_NAME).unlink()  # the log itself tells, without what was noted beside it
    change(state_dir, *CHANGES[finding])
    assert f"{DATABASE_NAME} is damaged: {finding}" in refusal(lambda: use(state_dir))


def test_an_altered_event_before_the_snapshot_is_found_by_verify_alone(state_dir: Path) -> None:
    change(state_dir, "UPDATE events SET body = replace(body, 'job-10', 'job-11') WHERE sequence = 10")
    started(state_dir)
    assert "event 10 is altered" in refusal(lambda: verify_log(state_dir))


def test_the_first_kept_event_is_held_by_the_one_that_left(state_dir: Path) -> None:
    change(state_dir, "UPDATE events SET body = replace(body, 'job-6', 'job-7') WHERE sequence = 6")
    assert "event 6 is altered" in refusal(lambda: verify_log(state_dir))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """What a disk holds of a log that was never closed: its newest events are in the write-ahead log only."""
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    with closing(SqliteEventLog(running)) as log:
        for number in range(1, 11):
            log.append(records(number, number))
        shutil.copytree(running, crashed)
    return crashed


def test_a_tail_that_was_cut_off_with_the_write_ahead_log_is_noticed(crashed: Path) -> None:
    write_ahead = crashed / f"{DATABASE_NAME}-wal"
    with write_ahead.open("r+b") as stream:
        stream.truncate(write_ahead.stat().st_size - 9_000)
    message = refusal(lambda: SqliteEventLog(crashed))
    assert "of 10 events are missing, since its write-ahead log events.sqlite3-wal was removed or cut off" in message
    assert "of 10 events are missing" in refusal(lambda: verify_log(crashed))
    # The way that the message names.
    head_path(crashed / DATABASE_NAME).unlink()
    with closing(SqliteEventLog(crashed)) as log:
        assert 0 < log.last_sequence() < 10


def test_a_checkpointed_log_whose_write_ahead_log_was_removed_has_lost_its_tail(tmp_path: Path) -> None:
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    with closing(SqliteEventLog(running)) as log:
        log.append(records(1, 3))
    with closing(SqliteEventLog(running)) as log:
        log.append(records(4, 9))
        shutil.copytree(running, crashed)
    (crashed / f"{DATABASE_NAME}-wal").unlink()
    assert "the newest 6 of 9 events are missing" in refusal(lambda: SqliteEventLog(crashed))


def test_another_log_of_the_same_length_is_not_taken_for_the_one_that_was_noted(
    state_dir: Path, tmp_path: Path
) -> None:
    with closing(SqliteEventLog(tmp_path / "other")) as log:
        log.append([LogRecord(event=record.event) for record in records(101, 140)])
    head = head_path(tmp_path / "other" / DATABASE_NAME).read_text().split()
    own_id = head_path(state_dir / DATABASE_NAME).read_text().split()[2]
    head_path(state_dir / DATABASE_NAME).write_text(f"{head[0]} {head[1]} {own_id}\n")
    assert "event 40 is not the one that was noted" in refusal(lambda: SqliteEventLog(state_dir))


def test_a_file_that_is_cut_off_says_how_much_is_there(state_dir: Path) -> None:
    path = state_dir / DATABASE_NAME
    size_bytes = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(size_bytes // 2 // 4_096 * 4_096)
    message = refusal(lambda: SqliteEventLog(state_dir))
    assert f"it is cut off: {path.stat().st_size:,} of {size_bytes:,} bytes are there" in message


@pytest.mark.parametrize("noted", [b"", b"garbage", b"9" * 54, b"\xff" * 300])
def test_an_unreadable_head_is_no_reason_to_refuse_a_whole_log(state_dir: Path, noted: bytes) -> None:
    head_path(state_dir / DATABASE_NAME).write_bytes(noted)
    with closing(SqliteEventLog(state_dir)) as log:
        assert log.append(records(41, 41)) == 41
    assert verify_log(state_dir)["last_sequence"] == 41


def test_a_backup_is_verified_where_it_lies_and_restored_without_the_head_of_what_it_replaces(
    state_dir: Path, tmp_path: Path
) -> None:
    back_up(state_dir, tmp_path / "backup")
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(41, 45))
    assert verify_log(tmp_path / "backup")["last_sequence"] == 40
    restore(tmp_path / "backup", state_dir, force=True)
    with closing(SqliteEventLog(state_dir)) as log:
        assert log.append(records(41, 41)) == 41
    assert verify_log(state_dir)["events"] == 36


def test_verify_refuses_a_backup_that_restore_would_refuse(state_dir: Path, tmp_path: Path) -> None:
    back_up(state_dir, tmp_path / "backup")
    copy = tmp_path / "backup" / DATABASE_NAME
    with copy.open("r+b") as file:
        file.seek(80)  # kept for later versions of SQLite: no page and no record
        file.write(b"x")
    result = CliRunner().invoke(cli, ["log", "verify", str(tmp_path / "backup")])
    assert isinstance(result.exception, RestoreRefusedError)
    assert "sha256 differs" in result.exception.message


def test_verify_prints_what_it_found_and_leaves_nothing_behind(state_dir: Path) -> None:
    before = sorted(path.name for path in state_dir.iterdir())
    result = CliRunner().invoke(cli, ["log", "verify", str(state_dir / DATABASE_NAME)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == {
        "database": str(state_dir / DATABASE_NAME),
        "format_version": 2,
        "first_sequence": 6,
        "last_sequence": 40,
        "events": 35,
        "chained_from": 6,
        "snapshot_sequence": 20,
        "requests": 40,
        "head_noted": True,
    }
    assert sorted(path.name for path in state_dir.iterdir()) == before


def test_verify_reads_a_log_that_is_being_written(state_dir: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        log.append(records(41, 50))
        assert verify_log(state_dir)["last_sequence"] == 50


def test_verify_reads_a_log_whose_writer_ends_at_that_moment(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the write-ahead log away between the looks whether there is one, and how long."""
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert verify_log(state_dir)["last_sequence"] == 40


def test_verify_without_a_log_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no event log in .*; name its file, or the folder"):
        verify_log(tmp_path)


def test_an_older_log_is_read_and_chained_from_its_next_event_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "scheduler", tmp_path / "state")
    before = verify_log(tmp_path / "state")
    assert (before["format_version"], before["chained_from"]) == (1, None)
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        last = log.last_sequence()
        log.append(records(1_001, 1_002))
    after = verify_log(tmp_path / "state")
    assert (after["format_version"], after["chained_from"]) == (2, last + 1)
    assert (after["first_sequence"], after["last_sequence"]) == (before["first_sequence"], last + 2)
    change(tmp_path / "state", "UPDATE events SET at_ms = 7 WHERE sequence = (SELECT max(sequence) FROM events)")
    assert f"event {last + 2} is altered" in refusal(lambda: verify_log(tmp_path / "state"))
