"""Damage is called damage, wherever a byte is flipped: never permissions, never a traceback, never what was stored."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scheduler_service import policy_registry
from scheduler_service.adapters.storage.event_log import AnsweredRequest, LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.recovery import JobNumbers, recover, snapshot_state
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up, restore
from scheduler_service.adapters.storage.stored_policies import StoredPolicies
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.commands.main import cli
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import PolicyError, UnsupportedVersionError
from scheduler_service.core.events import JobSubmitted, NodeJoined, PolicyChosen
from scheduler_service.core.records import JobRequest
from scheduler_service.errors import (
    RestoreRefusedError,
    SchedulerServiceError,
    SettingsError,
    StateDamagedError,
    StateFromNewerVersionError,
    StateMissingError,
)
from tests.support.scheduling import node

SECRET = "hunter2"
JOBS = 60
FLIPS = 20
DAMAGE = (StateDamagedError, StateFromNewerVersionError, StateMissingError)


def new_engine() -> SchedulerEngine:
    return SchedulerEngine(make_policy=policy_registry.make_policy, policy="fifo", seed=0)


def job(number: int) -> LogRecord:
    launch = {"environment": {"PASSWORD": SECRET * 20}}
    event = JobSubmitted(at_ms=number, request=JobRequest(job_id=f"job-{number}"), launch=launch)
    request = AnsweredRequest(request_id=f"{SECRET}-{number}", body_sha256="ab" * 32, answer=SECRET)
    return LogRecord(event=event, request=request)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state with a snapshot in the middle, all in one file."""
    folder = tmp_path_factory.mktemp("whole") / "state"
    engine = new_engine()
    with closing(SqliteEventLog(folder)) as log:
        log.append([LogRecord(event=PolicyChosen(at_ms=0, policy="fifo"))])
        log.append([job(number) for number in range(1, JOBS // 2)])
        for stored in log.read_from(1):
            engine.handle(stored.event)
        state = snapshot_state(engine, JobNumbers(last=JOBS // 2 - 1))
        log.store_snapshot(StoredSnapshot(sequence=log.last_sequence(), state=state), retained_events=10_000)
        log.append([job(number) for number in range(JOBS // 2, JOBS + 1)])
    assert not (folder / f"{DATABASE_NAME}-wal").exists()
    return folder


def start(state_dir: Path) -> None:
    with closing(SqliteEventLog(state_dir)) as log:
        recover(
            log,
            new_engine=new_engine,
            restored_engine=lambda state: SchedulerEngine.restore(state, make_policy=policy_registry.make_policy),
        )
        log.answered_requests()


def export(state_dir: Path) -> None:
    result = CliRunner().invoke(cli, ["export-log", "--state-dir", str(state_dir)])
    if result.exception is not None:
        raise result.exception


def copy(state_dir: Path) -> None:
    back_up(state_dir, state_dir.with_name("backup"))
    assert (state_dir.with_name("backup") / "manifest.json").is_file()


@pytest.mark.parametrize("use", [start, export, copy])
def test_a_flipped_byte_anywhere_is_harmless_or_called_damage(
    whole: Path, tmp_path: Path, use: Callable[[Path], None]
) -> None:
    drawn = random.Random(7)
    content = bytearray((whole / DATABASE_NAME).read_bytes())
    # Every byte of the file's header and of the first page's, then places all over the file.
    places = [*range(0, 110, 3), *(drawn.randrange(len(content)) for _ in range(FLIPS))]
    refusals: dict[int, SchedulerServiceError] = {}
    for number, place in enumerate(places):
        state_dir = tmp_path / str(number) / "state"
        shutil.copytree(whole, state_dir)
        flipped = bytearray(content)
        flipped[place] ^= drawn.choice((0x01, 0x20, 0x80, 0xFF))
        (state_dir / DATABASE_NAME).write_bytes(flipped)
        try:
            use(state_dir)
        except SchedulerServiceError as error:
            refusals[place] = error
        shutil.rmtree(state_dir.parent)
    assert len(refusals) > len(places) // 10
    for place, refusal in refusals.items():
        assert isinstance(refusal, DAMAGE), f"{place}: {refusal}"
        assert DATABASE_NAME in refusal.message, place
        assert "restore" in refusal.message, place
        assert SECRET not in refusal.message, place
        assert "permissions" not in refusal.message, place
        assert "\n" not in refusal.message, place


def flipped_text(state_dir: Path, sequence: int) -> None:
    """The body of one event is no UTF-8 any more."""
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection, connection:
        connection.execute(
            "UPDATE events SET body = CAST(CAST(substr(body, 1, 90) AS BLOB) || x'ff' || CAST(substr(body, 92) AS BLOB)"
            " AS TEXT) WHERE sequence = ?",
            (sequence,),
        )


def flipped_form(state_dir: Path, sequence: int) -> None:
    """The body is JSON, but its secret is where a number should be."""
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection, connection:
        connection.execute(
            "UPDATE events SET body = json_set(body, '$.at_ms', ?) WHERE sequence = ?", (SECRET, sequence)
        )


@pytest.mark.parametrize("use", [start, export, copy])
@pytest.mark.parametrize("spoil", [flipped_text, flipped_form])
def test_an_unreadable_record_is_named_by_file_and_number_without_its_content(
    whole: Path, tmp_path: Path, use: Callable[[Path], None], spoil: Callable[[Path, int], None]
) -> None:
    state_dir = tmp_path / "state"
    shutil.copytree(whole, state_dir)
    spoil(state_dir, JOBS)
    with pytest.raises(StateDamagedError) as caught:
        use(state_dir)
    assert f"{state_dir / DATABASE_NAME} is damaged: event {JOBS} is unreadable" in caught.value.message
    assert f"restore BACKUP --state-dir {state_dir} --force" in caught.value.message
    assert SECRET not in str(caught.value.__cause__) + caught.value.message
    assert not (tmp_path / "backup" / DATABASE_NAME).exists()


def test_an_old_unreadable_event_does_not_forbid_backups_of_what_still_starts(whole: Path, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    shutil.copytree(whole, state_dir)
    flipped_text(state_dir, 5)
    start(state_dir)
    copy(state_dir)
    with pytest.raises(StateDamagedError, match="event 5 is unreadable"):
        export(state_dir)


def test_a_backup_of_an_older_version_with_an_unreadable_record_is_refused(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "state")
    flipped_text(tmp_path / "state", JOBS)
    with monkeypatch.context() as patch:  # which looked at the pages only
        patch.setattr("scheduler_service.adapters.storage.state_backup.check_recoverable", lambda *_: JOBS)
        back_up(tmp_path / "state", tmp_path / "backup")
    with pytest.raises(RestoreRefusedError, match=f"event {JOBS} is unreadable") as caught:
        restore(tmp_path / "backup", tmp_path / "new", force=False)
    assert SECRET not in caught.value.message
    assert not (tmp_path / "new" / DATABASE_NAME).exists()


def test_a_missing_event_is_told_with_the_file(whole: Path, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    shutil.copytree(whole, state_dir)
    with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection, connection:
        connection.execute("DELETE FROM counters")
    with pytest.raises(StateDamagedError, match=f"{DATABASE_NAME} is damaged: the number of its newest event"):
        start(state_dir)


def recovered(folder: Path, change: Callable[[dict[str, Any]], None], *, job_id: str = "job-1") -> None:
    """Recover from a snapshot that was changed before it was stored."""
    engine = new_engine()
    engine.handle(JobSubmitted(at_ms=1, request=JobRequest(job_id=job_id)))
    state = json.loads(json.dumps(snapshot_state(engine, JobNumbers(last=1))))
    change(state["engine"]["state"])
    with closing(SqliteEventLog(folder)) as log:
        log.append([job(1)])
        log.store_snapshot(StoredSnapshot(sequence=1, state=state), retained_events=0)
        recover(
            log,
            new_engine=new_engine,
            restored_engine=partial(SchedulerEngine.restore, make_policy=policy_registry.make_policy),
            place=str(folder / DATABASE_NAME),
        )


def test_a_state_with_fields_of_a_newer_version_is_refused_in_a_sentence_that_names_the_way_back(
    tmp_path: Path,
) -> None:
    def grow(state: dict[str, Any]) -> None:
        state["jobs"][0]["a_field_of_next_year"] = 5

    with pytest.raises(StateFromNewerVersionError, match=r"JobRecord: unknown a_field_of_next_year; run that version"):
        recovered(tmp_path / "state", grow)


def test_a_state_with_a_phase_or_an_event_of_a_newer_version_is_not_called_damaged(tmp_path: Path) -> None:
    def enter(state: dict[str, Any]) -> None:
        state["jobs"][0]["phase"] = "dreaming"

    with pytest.raises(StateFromNewerVersionError, match="'dreaming' is no Phase"):
        recovered(tmp_path / "state", enter)
    for change in ({"kind": "JobDreamt"}, {"dreams": 1}):
        with pytest.raises(UnsupportedVersionError):
            decode_event(encode_event(job(1).event) | change)


def missing(**facts: Any) -> tuple[StoredPolicies, SchedulerEngine]:
    """The policies of a log that ends with the choice of one that cannot be made, and the engine that replayed it."""
    stored = StoredPolicies(policy_registry.make_policy, **({"replacement": ""} | facts))
    engine = SchedulerEngine(make_policy=stored.make, policy="fifo")
    engine.handle(PolicyChosen(at_ms=1, policy="plugged"))
    return stored, engine


def test_a_state_whose_policy_is_not_installed_any_more_says_so() -> None:
    stored, engine = missing()
    with pytest.raises(SettingsError, match=r"no policy 'plugged'.*install it again, or start once with --replace"):
        stored.check_replayed(engine.policy, "the log")


def test_a_policy_that_is_not_installed_any_more_is_replaced_where_that_is_asked_for() -> None:
    stored, engine = missing(replacement="fifo")
    assert stored.check_replayed(engine.policy, "the log")
    engine.handle(PolicyChosen(at_ms=2, policy="fifo"))
    assert not stored.check_replayed(engine.policy, "the log")


def test_what_a_missing_policy_has_decided_is_not_guessed_whatever_is_in_force_later() -> None:
    stored, engine = missing(replacement="fifo")
    engine.handle(NodeJoined(at_ms=2, node=node("n0", 1)))
    engine.handle(JobSubmitted(at_ms=3, request=JobRequest(job_id="job-1")))
    engine.handle(PolicyChosen(at_ms=4, policy="fifo"))
    with pytest.raises(SettingsError, match=r"no policy 'plugged'.*install it again for one start"):
        stored.check_replayed(engine.policy, "the log")


def test_a_scheduler_that_serves_refuses_what_cannot_be_made() -> None:
    stored, engine = missing()
    stored.end_replay()
    with pytest.raises(PolicyError):
        engine.handle(PolicyChosen(at_ms=2, policy="plugged"))


def test_a_snapshot_that_lacks_what_every_version_wrote_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(StateDamagedError, match="the snapshot of event 1 is unreadable"):
        recovered(tmp_path / "state", lambda state: state["jobs"][0].pop("request"))
