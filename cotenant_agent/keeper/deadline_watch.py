"""A second keeper of an attempt's lease: the namespace's first process ends itself, and with it all others, in time.

A shim that stands still (a debugger, a signal) ends nothing, and others count on the end. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple

from cotenant_agent.system_clock import awake_ms, boot_ms

_READ_BYTES = 65_536
_FIRST_LOOK_S = 1.0
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


def watch_deadlines(descriptor: int) -> None:
    """Let this process end (exit code 1) as soon as the newest deadline that a pipe brings is over; none = never."""
    os.set_blocking(descriptor, False)
    watch = _Watch(descriptor)
    signal.signal(signal.SIGALRM, watch.look)
    watch.look()


class _Watch:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._deadline = Deadline()
        self._rest = b""

    def look(self, *_: object) -> None:
        """Read what has arrived, and look again when that is over."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._descriptor, _READ_BYTES)
        *lines, self._rest = self._rest.split(b"\n")
        # By the boot clock each is later than the one before.
        self._deadline = max([self._deadline, *(Deadline(*map(int, line.split())) for line in lines)])
        left_ms = self._deadline.left_ms(boot_ms())
        if left_ms <= 0:
            os._exit(1)
        signal.setitimer(signal.ITIMER_REAL, left_ms / 1000 if self._deadline.boot_ms else _FIRST_LOOK_S)
