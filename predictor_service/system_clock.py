"""The clocks of the prediction service."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970, for the journal and the log."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds of a clock that never jumps, for durations."""
    return time.monotonic_ns() // 1_000_000


def monotonic_s() -> float:
    """Seconds on the same clock, for deadlines and for what takes less than a millisecond."""
    return time.monotonic()
