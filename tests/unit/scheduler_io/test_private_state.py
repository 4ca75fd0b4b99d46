"""Whatever the folder and the umask allow: only their owner reads the database, its copies and what they hold."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler_service.adapters.storage.event_log import LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up, restore
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.commands.main import cli
from scheduler_service.core.events import JobSubmitted
from scheduler_service.core.records import JobRequest

LAUNCH = {"environment": {"TOKEN": "secret"}}


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """An existing folder that every user may read."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}


def fill(log: SqliteEventLog) -> None:
    log.append([LogRecord(event=JobSubmitted(at_ms=1, request=JobRequest(job_id="job-1"), launch=LAUNCH))])
    log.store_snapshot(StoredSnapshot(sequence=1, state={}), retained_events=10)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], indirect=True, ids=oct)
def test_a_state_in_an_open_folder_is_private_from_its_start(open_folder: Path, umask: int) -> None:
    with closing(SqliteEventLog(open_folder)) as log:
        fill(log)
        assert {f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm"} < set(modes(open_folder))
        assert set(modes(open_folder).values()) == {"0o600"}
    assert set(modes(open_folder).values()) == {"0o600"}


def test_wider_files_of_an_older_version_are_closed_at_the_start(open_folder: Path, tmp_path: Path) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        fill(log)
        shutil.copytree(tmp_path / "state", open_folder, dirs_exist_ok=True)  # as a killed scheduler leaves it
    (open_folder / f"{DATABASE_NAME}.replaced").touch()
    for path in open_folder.iterdir():
        path.chmod(0o666)
    with closing(SqliteEventLog(open_folder)) as log:
        assert log.last_sequence() == 1
        assert f"{DATABASE_NAME}-wal" in modes(open_folder)
        assert set(modes(open_folder).values()) == {"0o600"}


def test_a_backup_into_an_open_folder_is_private(open_folder: Path, tmp_path: Path, umask: int) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        fill(log)
    back_up(tmp_path / "state", open_folder)
    assert modes(open_folder) == {DATABASE_NAME: "0o600", "manifest.json": "0o600"}


def test_a_restore_into_an_open_folder_is_private_with_what_it_replaces(
    open_folder: Path, tmp_path: Path, umask: int
) -> None:
    with closing(SqliteEventLog(open_folder)) as log:
        fill(log)
    back_up(open_folder, tmp_path / "backup")
    (open_folder / DATABASE_NAME).chmod(0o644)
    restore(tmp_path / "backup", open_folder, force=True)
    assert f"{DATABASE_NAME}.replaced" in modes(open_folder)
    assert set(modes(open_folder).values()) == {"0o600"}


@pytest.mark.parametrize("is_there", [False, True])
def test_an_exported_log_is_private(open_folder: Path, tmp_path: Path, umask: int, is_there: bool) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        fill(log)
    output = open_folder / "log.jsonl"
    if is_there:
        output.write_text("longer than what comes" * 100)
        output.chmod(0o644)
    arguments = ["export-log", "--state-dir", str(tmp_path / "state"), "--output", str(output)]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    assert modes(open_folder) == {"log.jsonl": "0o600"}
    assert output.read_text().count("\n") == 1
    assert "secret" in output.read_text()


def test_an_export_to_a_device_leaves_its_mode_alone(tmp_path: Path) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        fill(log)
    before = Path(os.devnull).stat().st_mode
    arguments = ["export-log", "--state-dir", str(tmp_path / "state"), "--output", os.devnull]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    assert Path(os.devnull).stat().st_mode == before


def test_an_export_to_a_folder_names_it(tmp_path: Path) -> None:
    with closing(SqliteEventLog(tmp_path / "state")) as log:
        fill(log)
    result = CliRunner().invoke(cli, ["export-log", "--state-dir", str(tmp_path / "state"), "--output", "/none/log"])
    assert "/none/log cannot be written" in str(result.exception)
