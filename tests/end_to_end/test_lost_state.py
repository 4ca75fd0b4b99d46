"""A real scheduler whose database is lost says so and ends; first starts and older states need no ceremony."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

from scheduler_service.adapters.storage.state_marker import MARKER_NAME
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from tests.support.loaded_programs import run_program
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess

ARGUMENTS = ["--predictor", "", "--policy", "fifo"]


def scheduler_verb(*words: str) -> subprocess.CompletedProcess[str]:
    return run_program("scheduler_service", words, folder=Path.cwd(), environment=os.environ, timeout_s=60)


def refusal(state_dir: Path) -> str:
    """What a start says that must end."""
    flags = ["--address", "127.0.0.1:0", "--metrics-address", "", "--state-dir", str(state_dir), *ARGUMENTS]
    done = scheduler_verb("serve", *flags)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert len([line for line in lines if not line.startswith("{")]) == 1, done.stderr
    return lines[-1]


def test_a_lost_database_is_refused_until_its_backup_is_restored(tmp_path: Path) -> None:
    with SchedulerProcess(tmp_path, arguments=ARGUMENTS) as scheduler, SchedulerClient(scheduler.address) as client:
        state_dir = scheduler.state_dir
        assert not (state_dir / MARKER_NAME).exists()
        scheduler.restart()  # an early kill leaves nothing that needs a word
        assert client.submit(name="first").job_id == "job-1"
        assert (state_dir / MARKER_NAME).is_file()
        backup = ["backup", str(tmp_path / "backup"), "--state-dir", str(state_dir)]
        assert scheduler_verb(*backup).returncode == 0
        scheduler.kill()
        for path in state_dir.glob(f"{DATABASE_NAME}*"):
            path.unlink()
        reported = refusal(state_dir)
        assert reported.startswith(f"error: jobs were accepted in {state_dir}, but {DATABASE_NAME} is missing")
        assert not (state_dir / DATABASE_NAME).exists()
        restore = ["restore", str(tmp_path / "backup"), "--state-dir", str(state_dir), "--force"]
        assert " ".join(restore[2:]) in reported
        assert scheduler_verb(*restore).returncode == 0
        scheduler.start()
        assert [job.job_id for job in client.list_all()] == ["job-1"]


def test_an_older_state_is_marked_and_closed_at_its_start(tmp_path: Path) -> None:
    with SchedulerProcess(tmp_path, arguments=ARGUMENTS) as scheduler, SchedulerClient(scheduler.address) as client:
        client.submit(name="first")
        state_dir = scheduler.state_dir
        scheduler.terminate()
        (state_dir / MARKER_NAME).unlink()
        with closing(sqlite3.connect(state_dir / DATABASE_NAME)) as connection, connection:
            connection.execute("DROP TABLE identity")
        (state_dir / DATABASE_NAME).chmod(0o644)
        scheduler.start()
        assert [job.spec.name for job in client.list_all()] == ["first"]
        assert json.loads((state_dir / MARKER_NAME).read_text())["state_id"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in state_dir.iterdir()} == {0o600}
        scheduler.kill()
    (state_dir / DATABASE_NAME).write_bytes(b"")
    assert f"{DATABASE_NAME} is empty" in refusal(state_dir)


def test_a_flipped_byte_is_reported_in_one_line_without_the_record(tmp_path: Path) -> None:
    secret = "planted-secret"
    with SchedulerProcess(tmp_path, arguments=ARGUMENTS) as scheduler, SchedulerClient(scheduler.address) as client:
        client.submit(name="first", environment={"TOKEN": secret})
        state_dir = scheduler.state_dir
        scheduler.terminate()
    database = state_dir / DATABASE_NAME
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM snapshots")  # so that the start reads the event itself
    content = bytearray(database.read_bytes())
    content[content.index(secret.encode())] ^= 0x80
    database.write_bytes(content)
    reported = refusal(state_dir)
    assert reported.startswith(f"error: {database} is damaged: event 2 is unreadable; keep the file")
    assert secret[1:] not in reported
