"""The clocks of the agent: the only module that reads them."""

from __future__ import annotations

import time


def boot_ms() -> int:
    """Milliseconds since the machine started, suspended time included: leases are counted on it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def awake_ms() -> int:
    """Milliseconds of a clock that stands still while the machine sleeps, as the scheduler's does."""
    return steady_ns() // 1_000_000


def steady_ns() -> int:
    """Nanoseconds of the clock that progress reports carry; never goes back."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Milliseconds since 1970, for people and file ages only."""
    return time.time_ns() // 1_000_000
