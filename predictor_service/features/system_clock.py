"""The only clock of the extraction pool: deadlines, never dates."""

from __future__ import annotations

import time


def monotonic_s() -> float:
    """Seconds on a clock that never jumps; only differences mean something."""
    return time.monotonic()
