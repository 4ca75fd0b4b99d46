"""A log that has lost its beginning says so to whoever reads it from there."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from cotenant_agent.keeper import rotating_log
from cotenant_agent.keeper.rotating_log import RotatingLog, drain_output
from cotenant_agent.progress_reading.log_reading import CUT_NOTE, LogReader, read_tail
from cotenant_agent.storage.state_directory import AttemptDirectory


def printed(folder: Path, lines: int) -> AttemptDirectory:
    """The directory of an attempt that printed so many lines of ten bytes, where two files of twenty are kept."""
    log = RotatingLog(20)
    for number in range(lines):
        log.write(b"line %04d\n" % number)
    return AttemptDirectory(folder)


def everything(directory: AttemptDirectory) -> bytes:
    reader, content = LogReader(directory), b""
    while part := reader.read():
        content += part
    reader.close()
    return content


@pytest.fixture(autouse=True)
def in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_log_that_is_whole_is_what_was_printed(tmp_path: Path) -> None:
    assert everything(printed(tmp_path, 4)) == b"line 0000\nline 0001\nline 0002\nline 0003\n"


def test_a_log_that_was_cut_begins_with_a_line_that_says_so(tmp_path: Path) -> None:
    assert everything(printed(tmp_path, 6)) == CUT_NOTE + b"line 0002\nline 0003\nline 0004\nline 0005\n"


def test_its_last_bytes_are_what_was_printed_last(tmp_path: Path) -> None:
    assert read_tail(printed(tmp_path, 6), 10) == b"line 0005\n"


def test_the_last_words_of_a_job_are_kept_though_its_keeper_stood_still_when_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments_ms = itertools.count(0, 5_000)
    monkeypatch.setattr(rotating_log, "boot_ms", lambda: next(moments_ms))
    reading, writing = os.pipe()
    os.write(writing, b"accuracy 0.93\n")
    drain_output(reading, RotatingLog(1_000))
    os.close(reading)
    os.close(writing)
    assert everything(AttemptDirectory(tmp_path)) == b"accuracy 0.93\n"


def test_who_holds_the_output_of_an_ended_job_and_writes_on_is_not_listened_to_for_ever(tmp_path: Path) -> None:
    with Path("/dev/zero").open("rb") as endless:
        drain_output(endless.fileno(), RotatingLog(1 << 16))
    assert everything(AttemptDirectory(tmp_path)).endswith(b"\0")
