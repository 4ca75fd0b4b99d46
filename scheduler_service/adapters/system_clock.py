"""The one place where this service reads a clock."""

from __future__ import annotations

import time
from pathlib import Path


class SystemClock:
    """Milliseconds since 1970 that never run backwards.

    The wall clock is read once; from then on the machine's monotonic clock counts, so that a corrected wall clock
    neither fires leases early nor turns the order of events round.

    Args:
        not_before_ms: The instant of the newest stored event; the clock starts there if the wall clock is behind it.
    """

    def __init__(self, *, not_before_ms: int = 0) -> None:
        self._origin_ms = max(read_wall_ms(), not_before_ms)
        self._started_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """Return the present instant in milliseconds."""
        return self._origin_ms + (time.monotonic_ns() - self._started_ns) // 1_000_000


def read_boot_id() -> str:
    """Return the kernel's name for the boot whose clock counts here; empty = it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def read_wall_ms() -> int:
    """Return milliseconds since 1970 by the wall clock, which may be wrong."""
    return time.time_ns() // 1_000_000


def read_monotonic_ns() -> int:
    """Return nanoseconds of a clock that only serves to measure durations."""
    return time.perf_counter_ns()
