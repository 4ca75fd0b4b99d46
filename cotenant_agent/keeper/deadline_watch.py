"""A second keeper of an attempt's lease: the namespace's first process ends itself, and with it all others, in time.

A shim that stands still (a debugger, a signal) ends nothing, and others count on the end. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal

from cotenant_agent.system_clock import boot_ms

_READ_BYTES = 65_536
_FIRST_LOOK_S = 1.0


def tell_deadline(descriptor: int, deadline_boot_ms: int) -> None:
    """Move the deadline of the process at the other end of a pipe."""
    # A watcher that does not read any more has ended, or stands still itself.
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{deadline_boot_ms}\n".encode())


def watch_deadlines(descriptor: int) -> None:
    """Let this process end (exit code 1) as soon as the newest deadline that a pipe brings is over; none = never."""
    os.set_blocking(descriptor, False)
    watch = _Watch(descriptor)
    signal.signal(signal.SIGALRM, watch.look)
    watch.look()


class _Watch:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._deadline_ms = 0
        self._rest = b""

    def look(self, *_: object) -> None:
        """Read what has arrived, and look again when that is over."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._descriptor, _READ_BYTES)
        *lines, self._rest = self._rest.split(b"\n")
        self._deadline_ms = max([self._deadline_ms, *map(int, lines)])
        left_ms = self._deadline_ms - boot_ms()
        if self._deadline_ms and left_ms <= 0:
            os._exit(1)
        signal.setitimer(signal.ITIMER_REAL, left_ms / 1000 if self._deadline_ms else _FIRST_LOOK_S)
