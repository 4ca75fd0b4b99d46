"""The clocks of the profiler: one monotonic clock for all processes of a machine, and CPU time of any process."""

from __future__ import annotations

import time


def now_ns() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds; the same in every process of this machine."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def sleep_until_ns(instant_ns: int) -> None:
    """Return at `instant_ns` of CLOCK_MONOTONIC, or at once when it has passed."""
    remaining_ns = instant_ns - now_ns()
    if remaining_ns > 0:
        time.sleep(remaining_ns / 1e9)


def sleep_ms(duration_ms: float) -> None:
    """Sleep for `duration_ms`."""
    time.sleep(duration_ms / 1e3)


def processor_time_ns(pid: int) -> int:
    """Return the CPU time of all threads of process `pid`, nanoseconds.

    Linux names the CPU clock of another process by a number made from its id (clock_getcpuclockid(3)); unlike
    /proc/PID/stat, which counts in hundredths of a second, it is exact.

    Raises:
        OSError: There is no such process.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def own_processor_time_ns() -> int:
    """Return the CPU time of all threads of this process, nanoseconds."""
    return time.process_time_ns()
