"""Long work in a thread of its own that lets the event loop go first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Entry = TypeVar("_Entry")
# Each turn that the loop takes next to such a thread waits for it; a request takes several.
_SLICE_NS = 2_000_000
_PAUSE_FACTOR = 3


class PacedWork:
    """Pauses between the entries of long work: three times as long as was worked, after every 2 ms of work.

    A thread that only computes takes the interpreter's lock back as soon as it can: while a snapshot of 6,000 jobs was
    encoded, for a second, every request waited a quarter to half a second (`python -m benchmarks.scheduler_load`).
    """

    def __init__(self) -> None:
        self._is_hurried = False

    def __call__(self, entries: Iterable[_Entry]) -> Iterator[_Entry]:
        """Yield the entries; what is done between two of them is the work."""
        began_ns = time.thread_time_ns()
        for entry in entries:
            yield entry
            worked_ns = time.thread_time_ns() - began_ns
            if worked_ns >= _SLICE_NS and not self._is_hurried:
                time.sleep(_PAUSE_FACTOR * worked_ns / 1e9)
                began_ns = time.thread_time_ns()

    def hurry(self) -> None:
        """Pause no more: only this work is waited for."""
        self._is_hurried = True
