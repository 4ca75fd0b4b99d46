from __future__ import annotations

import json
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from cotenant_agent.progress_reading.progress import (
    ProgressReport,
    ProgressSocket,
    ProgressTrack,
    ProgressWindow,
    bind_anywhere,
    check_pattern,
    is_plausible,
    parse_report,
)
from tests.support.cases import for_each


def at(step: int, ms: int, loss: float | None = None) -> ProgressReport:
    return ProgressReport(step=step, at_ns=ms * 1_000_000, loss=loss)


def test_a_window_counts_steps_between_its_reports() -> None:
    track = ProgressTrack()
    for step, ms in ((10, 1000), (15, 1500), (30, 3000)):
        track.accept(at(step, ms))
    assert track.close_window() == ProgressWindow(steps=20, duration_ms=2000)


def test_windows_join_without_a_gap_so_that_slow_steps_count_fully() -> None:
    track = ProgressTrack()
    track.accept(at(1, 0))
    assert track.close_window().steps == 0
    assert track.close_window().steps == 0
    track.accept(at(2, 7000))
    assert track.close_window() == ProgressWindow(steps=1, duration_ms=7000)
    track.accept(at(3, 15000))
    assert track.close_window() == ProgressWindow(steps=1, duration_ms=8000)


def test_a_report_without_a_new_step_does_not_move_the_time_of_the_last_one() -> None:
    """A bar that begins again is believed after three numbers: its steps come at once then, and took all that time."""
    track = ProgressTrack()
    for step, ms in ((10, 1000), (20, 2000), (20, 2600), (20, 2900)):
        track.accept(at(step, ms, loss=ms / 1000))
    assert (track.close_window(), track.loss) == (ProgressWindow(steps=10, duration_ms=1000), 2.9)
    track.accept(at(30, 3000))
    assert track.close_window() == ProgressWindow(steps=10, duration_ms=1000)


def test_an_older_report_changes_nothing() -> None:
    track = ProgressTrack(steps_done=5)
    track.accept(at(20, 2000, loss=0.5))
    track.accept(at(10, 3000, loss=9.0))
    track.accept(at(25, 1000, loss=9.0))
    assert (track.steps_done, track.loss) == (20, 0.5)


def test_a_report_from_the_future_is_not_plausible() -> None:
    assert is_plausible(at(1, 1000), now_ns=1_000_000_000)
    assert not is_plausible(at(1, 10_000), now_ns=1_000_000_000)


@for_each(
    "content",
    [
        b"", b"[]", b"3", b"{", b"\xff\xfe", b'{"step": -1, "at_ns": 1}', b'{"step": 1.5}', b'{"step": true}',
        b'{"step": 99999999999999999999, "at_ns": 1}', b'{"step": "1"}', b'{"step": 1, "at_ns": "x"}',
        b'{"step": 1, "epoch": -2}', b"[" * 1000,
    ],
)  # fmt: skip
def test_malformed_reports_are_dropped(content: bytes) -> None:
    assert parse_report(content) is None


@pytest.mark.parametrize("loss", [b"NaN", b"1e999", b"9" * 400, b'"low"'])
def test_a_loss_that_is_no_number_does_not_cost_the_step(loss: bytes) -> None:
    report = parse_report(b'{"step": 3, "at_ns": 1, "loss": ' + loss + b"}")
    assert report is not None
    assert (report.step, report.loss) == (3, None)


def send(path: Path, content: bytes) -> None:
    """By the folder's descriptor: the path itself may be too long for a socket."""
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(content, f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def test_datagrams_count_only_from_processes_of_the_job(tmp_path: Path) -> None:
    senders: list[int] = []

    def is_first(pid: int) -> bool:
        senders.append(pid)
        return len(senders) == 1

    path = tmp_path / "s"
    listener = ProgressSocket(path, is_first)
    send(path, b'{"step": 1, "at_ns": 1}')
    assert [report.step for report in listener.receive()] == [1]
    send(path, b'{"step": 2, "at_ns": 2}')
    assert listener.receive() == []
    assert senders == [os.getpid(), os.getpid()]
    listener.close()


def test_a_sender_is_looked_up_once_however_much_it_sends(tmp_path: Path) -> None:
    senders: list[int] = []

    def note(pid: int) -> bool:
        senders.append(pid)
        return True

    path = tmp_path / "s"
    listener = ProgressSocket(path, note)
    for step in range(1, 6):
        send(path, b'{"step": %d, "at_ns": %d}' % (step, step))
    assert [report.step for report in listener.receive()] == [1, 2, 3, 4, 5]
    assert senders == [os.getpid()]
    listener.close()


def test_a_link_put_in_the_sockets_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("")
    secret.chmod(0o640)
    modes: list[int] = []

    def bind_and_put_a_link_there(listener: socket.socket, path: Path) -> None:
        bind_anywhere(listener, path)
        modes.append(stat.S_IMODE(path.stat().st_mode))
        path.unlink()
        path.symlink_to(secret)

    monkeypatch.setattr("cotenant_agent.progress_reading.progress.bind_anywhere", bind_and_put_a_link_there)
    other_user = 65_534 if os.geteuid() == 0 else os.getuid()
    ProgressSocket(tmp_path / "s", lambda _: True, (other_user, os.getgid())).close()
    found = secret.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode), modes) == (os.getuid(), 0o640, [0o600])


def test_an_oversized_datagram_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = ProgressSocket(path, lambda _: True)
    send(path, json.dumps({"step": 1, "at_ns": 1, "x": "y" * 2000}).encode())
    send(path, b'{"step": 2, "at_ns": 1}')
    assert [report.step for report in listener.receive()] == [2]
    listener.close()


def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    listener = ProgressSocket(directory / "progress.sock", lambda _: True)
    assert (directory / "progress.sock").is_socket()
    listener.close()


@pytest.mark.parametrize("pattern", ["(", "step", "x" * 600])
def test_a_useless_expression_is_named(pattern: str) -> None:
    assert check_pattern(pattern)


def test_a_useful_expression_has_a_group_called_step() -> None:
    assert check_pattern(r"(?P<step>\d+)") == ""
    assert re.match(r"(?P<step>\d+)", "12")


def test_no_window_reaches_across_a_pause() -> None:
    track = ProgressTrack()
    for step, ms in ((1, 100), (2, 200)):
        track.accept(at(step, ms))
    track.interrupt(is_paused=True)
    track.accept(at(3, 300))
    assert track.close_window().steps == 0
    track.interrupt(is_paused=False)
    track.accept(at(4, 5_300))
    assert track.close_window().steps == 0
    track.accept(at(5, 5_400))
    assert track.close_window() == ProgressWindow(steps=1, duration_ms=100)
    assert track.steps_done == 5


@pytest.mark.parametrize("total", [b"-1", b"2", b"1e3", b'"9"', b"true", b"null", b"9007199254740992"])
def test_a_total_that_cannot_be_is_none_and_the_step_counts(total: bytes) -> None:
    report = parse_report(b'{"step": 3, "at_ns": 1, "total": ' + total + b"}")
    assert report is not None
    assert (report.step, report.total) == (3, 0)


def test_the_newest_total_that_was_said_is_kept() -> None:
    track = ProgressTrack()
    for step, total in ((1, 0), (2, 40), (3, 0)):
        track.accept(ProgressReport(step=step, at_ns=step, total=total))
    assert track.steps_total == 40
    track.accept(ProgressReport(step=4, at_ns=4, total=50))
    assert track.steps_total == 50
