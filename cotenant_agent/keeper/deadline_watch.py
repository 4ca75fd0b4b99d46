"""A second keeper of an attempt's lease: the namespace's first process ends itself, and with it all others, in time.

A shim that stands still (a debugger, a signal) ends nothing, and others count on the end. Where that process stood
still itself beyond the deadline, it holds all others for a while first: see `standstill`. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from cotenant_agent.system_clock import awake_ms, boot_ms

HELD_MS_MAX = 30_000
"""How long a job that stood still beyond its lease and grace is held at most, until a newer lease comes."""
_READ_BYTES = 65_536
_FIRST_LOOK_S = 1.0
_LATE_MS = 1_000
_HELD_LOOK_S = 0.1
_NEVER_MS = 1 << 53


class Deadline(NamedTuple):
    """An instant by the boot clock and, where the scheduler sleeps with this machine, by the one that both count on.

    Attributes:
        boot_ms: 0 = never.
        awake_ms: 0 = the boot clock counts.
    """

    boot_ms: int = 0
    awake_ms: int = 0

    def left_ms(self, now_boot_ms: int) -> int:
        """How long until then."""
        if not self.boot_ms:
            return _NEVER_MS
        return self.awake_ms - awake_ms() if self.awake_ms else self.boot_ms - now_boot_ms

    def put_off(self, by_ms: int) -> Deadline:
        """The same, so much later."""
        return Deadline(self.boot_ms + by_ms, self.awake_ms + by_ms if self.awake_ms else 0)


def tell_deadline(descriptor: int, deadline: Deadline) -> None:
    """Move the deadline of the process at the other end of a pipe."""
    # A watcher that does not read any more has ended, or stands still itself.
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{deadline.boot_ms} {deadline.awake_ms}\n".encode())


def watch_deadlines(descriptor: int, signal_others: Callable[[int], bool]) -> None:
    """Let this process end (exit code 1) as soon as the newest deadline that a pipe brings is over; none = never.

    Args:
        descriptor: Of the pipe.
        signal_others: Sends a signal to whatever ends with this process, and to nothing else; whether it may.
    """
    os.set_blocking(descriptor, False)
    watch = _Watch(descriptor, signal_others)
    signal.signal(signal.SIGALRM, watch.look)
    watch.look()


class _Watch:
    def __init__(self, descriptor: int, signal_others: Callable[[int], bool]) -> None:
        self._descriptor = descriptor
        self._signal_others = signal_others
        self._deadline = Deadline()
        self._rest = b""
        self._held_until_ms = 0

    def look(self, *_: object) -> None:
        """Read what has arrived, and look again when that is over."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._descriptor, _READ_BYTES)
        *lines, self._rest = self._rest.split(b"\n")
        # By the boot clock each is later than the one before.
        self._deadline = max([self._deadline, *(Deadline(*map(int, line.split())) for line in lines)])
        now_ms = boot_ms()
        left_ms = self._deadline.left_ms(now_ms)
        if left_ms <= 0:
            self._hold_or_end(now_ms, late_ms=-left_ms)
            return
        if self._held_until_ms:
            self._held_until_ms = 0
            self._signal_others(signal.SIGCONT)
        signal.setitimer(signal.ITIMER_REAL, left_ms / 1000 if self._deadline.boot_ms else _FIRST_LOOK_S)

    def _hold_or_end(self, now_ms: int, *, late_ms: int) -> None:
        """End all at once, but for what stood still with this process: a newer deadline may be on its way."""
        if not self._held_until_ms and late_ms >= _LATE_MS:
            # A shim that lives ends its job a little earlier, and says so.
            self._held_until_ms = now_ms + HELD_MS_MAX + _LATE_MS
        # Again and again: what stopped them from outside may let them go only now.
        if now_ms >= self._held_until_ms or not self._signal_others(signal.SIGSTOP):
            os._exit(1)
        signal.setitimer(signal.ITIMER_REAL, _HELD_LOOK_S)
