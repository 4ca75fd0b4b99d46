"""The one place where command line, client, predictor and simulator read a clock."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Returns milliseconds since 1970 (UTC), for comparing with timestamps of the services."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Returns milliseconds of a clock that never jumps, for measuring durations."""
    return time.monotonic_ns() // 1_000_000


def steady_s() -> float:
    """Returns seconds of the same clock, for what takes less than a millisecond."""
    return time.monotonic()


def cpu_s() -> float:
    """Returns the CPU time of this process in seconds."""
    return time.process_time()


def wait_ms(duration_ms: int, stop: threading.Event | None = None) -> bool:
    """Waits; returns True as soon as `stop` is set."""
    if stop is None:
        time.sleep(max(0, duration_ms) / 1000)
        return False
    return stop.wait(max(0, duration_ms) / 1000)


def iso_utc(at_ms: int) -> str:
    """Returns an instant as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
