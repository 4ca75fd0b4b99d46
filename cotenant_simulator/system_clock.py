"""The one module that reads a clock: for timings and the progress bar, never for what is simulated."""

from __future__ import annotations

import time


def cpu_s() -> float:
    """Return the CPU time of this process in s."""
    return time.process_time()


def monotonic_s() -> float:
    """Return a time that only goes forward in s."""
    return time.monotonic()
