"""On a full disk a job is still seen: how far it is, and which error ended it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.keeper.lost_output import KEPT_BYTES, keep_room, note_lost, read_lost
from cotenant_agent.keeper.rotating_log import RotatingLog
from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.storage.state_directory import AttemptDirectory
from tests.support.small_disks import fill, small_disk


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 256 KiB, in which the test stands."""
    with small_disk(tmp_path / "small", "size=256k") as mount:
        monkeypatch.chdir(mount)
        yield mount


def steps(reader: LogProgress, moment: int) -> list[int]:
    return [report.step for report in reader.read(moment)]


def test_the_steps_of_a_job_are_seen_while_the_disk_takes_nothing_of_its_log(small: Path) -> None:
    keep_room("out.log")
    log, reader = RotatingLog(1 << 20), LogProgress(small / "out.log", "")
    log.write(b"step 1/90\nstep 2/90\nste")
    assert steps(reader, 1) == [2]
    fill(small / "ballast")
    # What is begun of a page the disk has given goes on there.
    log.write(b"p 3/90\n" + b"x" * os.sysconf("SC_PAGE_SIZE") + b"\nstep 4/90\nstep 5")
    assert steps(reader, 2) == [4]
    log.write(b"/90\nstep 6/90\n")
    assert steps(reader, 3) == [6]
    assert steps(reader, 4) == []
    (small / "ballast").unlink()
    log.write(b"step 7/90\n")
    assert steps(reader, 5) == [7]
    assert log.dropped_bytes > 0


def test_the_next_life_of_an_agent_reads_on_where_the_last_one_was(small: Path) -> None:
    keep_room("out.log")
    log, reader = RotatingLog(1 << 20), LogProgress(small / "out.log", "")
    bar = "".join(f"\r{step}/60 [00:01<00:02, 13.50it/s]" for step in range(61)).encode()
    log.write(bar)
    fill(small / "ballast")
    log.write(b"x" * os.sysconf("SC_PAGE_SIZE"))
    log.write(bar)
    assert steps(reader, 1) == [119]
    record = json.loads(json.dumps(reader.to_record()))
    log.write(bar)
    assert [report.step for report in LogProgress(small / "out.log", "", record).read_to_end(2)] == [180]


def test_the_error_that_a_full_disk_kept_out_of_the_log_is_named(tmp_path: Path) -> None:
    directory = AttemptDirectory(tmp_path / "jobs" / "job.1")
    directory.path.mkdir(parents=True)
    directory.log.write_text("step 1\n")
    said = "Traceback (most recent call last):\n  save(net)\nOSError: [Errno 28] No space left on device: 'model.pt'\n"
    record = {"return_code": 1, "cause": "", "dropped_log_bytes": len(said), "log_tail": f"step 1\n{said}"}
    directory.exit.write_text(json.dumps(record))
    attempt = Attempt(directory, {"job_id": "job", "attempt": 1, "fence": 1}, tmp_path / "kept", tmp_path / "run")
    end = attempt.conclude(peak_bytes=0, available_bytes=0, co_located="")
    assert "No space left on device" in end.detail
    assert end.log_tail.endswith(said)


def test_what_is_kept_no_more_leaves_no_half_of_a_number(tmp_path: Path) -> None:
    log = str(tmp_path / "out.log")
    keep_room(log)
    assert read_lost(log, 0) == (0, b"")
    note_lost(log, 5, b"12345")
    assert read_lost(log, 0) == (5, b"12345")
    assert read_lost(log, 2) == (5, b"345")
    end = b"x" * KEPT_BYTES + b"0/90\nstep 41/90\n"
    note_lost(log, 5 + len(end), end)
    assert read_lost(log, 5) == (5 + len(end), b"\nstep 41/90\n")


@pytest.mark.parametrize("note", [b"", b"no note", b"\0" * 8232, b"7".rjust(20, b"0") + b"\0" * 8192 + b"0" * 20])
def test_a_note_that_is_none_is_not_read(tmp_path: Path, note: bytes) -> None:
    log = tmp_path / "out.log"
    Path(f"{log}.lost").write_bytes(note)
    assert read_lost(str(log), 0) == (0, b"")


def test_nothing_is_kept_of_an_attempt_that_an_older_agent_began(tmp_path: Path) -> None:
    log = str(tmp_path / "out.log")
    note_lost(log, 5, b"12345")
    assert list(tmp_path.iterdir()) == []
    assert read_lost(log, 0) == (0, b"")
