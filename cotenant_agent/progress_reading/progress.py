"""Progress that jobs report: datagrams from the helper and a file next to them (log_progress: lines of the log).

All of it is untrusted input: bounded in size and rate, checked field by field, and a datagram counts only when the
kernel says that it was sent by a process of that very attempt.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cotenant_agent.devices.allocated_memory import AllocatedMemory
from cotenant_agent.records import STEPS_LIMIT

_DATAGRAM_LIMIT_BYTES = 1024
_DATAGRAMS_PER_READ = 200
_PATTERN_LIMIT = 512
_CREDENTIALS = struct.Struct("iII")
_UNIX_PATH_LIMIT = 107
_REPORT_FROM_FUTURE_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """One statement of a job: optimizer steps done over all attempts, at an instant of the steady clock.

    Attributes:
        allocated_bytes: Device memory that it has allocated; such a statement says nothing else. None = it is no such.
        total: Optimizer steps of the whole job; 0 = it does not say.
    """

    step: int
    at_ns: int
    epoch: int = 0
    loss: float | None = None
    failure: str = ""
    allocated_bytes: int | None = None
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressWindow:
    """Steps and the milliseconds they took, between the newest reports of two consecutive windows."""

    steps: int
    duration_ms: int


class ProgressTrack:
    """The counters of one attempt; they never go back."""

    def __init__(self, steps_done: int = 0) -> None:
        self.steps_done = steps_done
        self.steps_total = 0
        self.epoch = 0
        self.loss: float | None = None
        self.failure = ""
        self.allocated = AllocatedMemory()
        self._newest: ProgressReport | None = None
        self._window_start: ProgressReport | None = None
        self._is_paused = False

    def accept_plausible(self, reports: Iterable[ProgressReport], now_ns: int, steps_max: int = STEPS_LIMIT) -> None:
        """Take reports in, those that come from the future left out; see `accept`."""
        for report in reports:
            if is_plausible(report, now_ns):
                self.accept(report, steps_max)

    def accept(self, report: ProgressReport, steps_max: int = STEPS_LIMIT) -> None:
        """Take a report in; one that is older than what is known changes nothing.

        Args:
            report: What the job says, or its log shows.
            steps_max: More are not counted as done; that they are made shows in windows all the same.
        """
        if report.allocated_bytes is not None:
            self.allocated.add(report.allocated_bytes)
            return
        self.failure = self.failure or report.failure
        if self._newest is not None and (report.step < self._newest.step or report.at_ns <= self._newest.at_ns):
            return
        if not self._is_paused:
            self._window_start = self._window_start or report
        if self._newest is None or report.step > self._newest.step:
            # Numbers that do not count yet (a bar may have begun again) tell nothing of when its steps were done.
            self._newest = report
        self.steps_done = max(self.steps_done, min(report.step, steps_max))
        self.steps_total = report.total or self.steps_total
        self.epoch = report.epoch
        self.loss = report.loss if report.loss is not None else self.loss

    def interrupt(self, *, is_paused: bool) -> None:
        """Drop the present window: the job stands still, or goes on; then a window begins with its next step."""
        self._window_start, self._is_paused = None, is_paused

    def close_window(self) -> ProgressWindow:
        """Steps since the last window that saw any; windows join without gaps, so that slow steps count fully."""
        if self._newest is None or self._window_start is None or self._newest.step == self._window_start.step:
            return ProgressWindow(steps=0, duration_ms=0)
        start, self._window_start = self._window_start, self._newest
        duration_ms = round((self._newest.at_ns - start.at_ns) / 1e6)
        return ProgressWindow(steps=self._newest.step - start.step, duration_ms=duration_ms)


class ProgressSocket:
    """The datagram socket of one attempt."""

    def __init__(self, path: Path, is_from_job: Callable[[int], bool], owner: tuple[int, int] | None = None) -> None:
        self._is_from_job = is_from_job
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # The folder is the job's: nothing that it could put in the socket's place meanwhile may be changed.
        os.fchmod(self._socket.fileno(), 0o600)
        path.unlink(missing_ok=True)
        bind_anywhere(self._socket, path)
        if owner is not None:
            os.chown(path, *owner, follow_symlinks=False)

    def fileno(self) -> int:
        """For event loops."""
        return self._socket.fileno()

    def receive(self) -> list[ProgressReport]:
        """What has arrived, at most 200 datagrams at a time; anything malformed or foreign is dropped."""
        reports = []
        # Finding out which processes belong to a job takes a look at all its processes.
        is_from_job = functools.cache(self._is_from_job)
        for _ in range(_DATAGRAMS_PER_READ):
            try:
                content, ancillary, flags, _ = self._socket.recvmsg(
                    _DATAGRAM_LIMIT_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:
                break
            report = None if flags & socket.MSG_TRUNC else parse_report(content)
            if report is not None and is_from_job(_sender(ancillary)):
                reports.append(report)
        return reports

    def close(self) -> None:
        """Stop listening; the file stays for the job's next attempt to send, which then fails quietly."""
        self._socket.close()


def bind_anywhere(listener: socket.socket, path: Path) -> None:
    """Bind also where the path is longer than the 107 bytes of a socket address."""
    if len(os.fsencode(path)) <= _UNIX_PATH_LIMIT:
        listener.bind(str(path))
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def parse_report(content: bytes) -> ProgressReport | None:
    """A report out of JSON; None when a field is missing, of the wrong type or out of range."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    if "allocated" in fields:
        return _memory_sample(fields["allocated"], fields.get("at_ns"))
    step, epoch, at_ns = (fields.get(name, 0) for name in ("step", "epoch", "at_ns"))
    loss, failure, total = fields.get("loss"), fields.get("failure", ""), fields.get("total", 0)
    if not all(is_counter(value) for value in (step, epoch)) or type(at_ns) is not int or at_ns < 0:
        return None
    return ProgressReport(
        step=step,
        epoch=epoch,
        at_ns=at_ns,
        loss=_finite(loss),
        failure="gpu_oom" if failure == "gpu_oom" else "",
        # One that cannot be is none: the step counts all the same.
        total=total if isinstance(total, int) and is_counter(total) and total >= step else 0,
    )


def _memory_sample(allocated: object, at_ns: object) -> ProgressReport | None:
    if not isinstance(allocated, int) or not is_counter(allocated) or type(at_ns) is not int or at_ns < 0:
        return None
    return ProgressReport(step=0, at_ns=at_ns, allocated_bytes=allocated)


def is_plausible(report: ProgressReport, now_ns: int) -> bool:
    """A report may not come from the future; that would freeze the counters."""
    return report.at_ns <= now_ns + _REPORT_FROM_FUTURE_NS


def check_pattern(pattern: str) -> str:
    """What is wrong with a progress expression; empty = nothing."""
    if len(pattern) > _PATTERN_LIMIT:
        return f"longer than {_PATTERN_LIMIT} characters"
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return "" if "step" in compiled.groupindex else "it has no group (?P<step>...)"


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0])
    return 0


def _finite(value: object) -> float | None:
    """The number; None for anything else, and for what a float cannot hold."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_counter(value: object) -> bool:
    """Whether that is a number of steps or epochs that can be."""
    return type(value) is int and 0 <= value < STEPS_LIMIT
