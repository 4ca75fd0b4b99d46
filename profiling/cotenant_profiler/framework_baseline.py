"""What an interpreter holds that has only imported the framework: an agent's stand-in devices count beyond that.

Import it before anything else of ours, so that what other modules hold is not part of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import torch  # noqa: F401 (what is measured)

from cotenant_profiler.resident_memory import peak_resident_bytes, resident_bytes

BASELINE_BYTES: Final = resident_bytes()
"""Resident memory right after the import."""


class _Ahead:
    """What a process imported before its workers were forked, which a fresh worker imports with its first optimizer.

    Attributes:
        held_bytes: Held by it since.
        peak_bytes: Most that the process held until its end.
    """

    held_bytes = 0
    peak_bytes = 0


_ahead = _Ahead()


@contextlib.contextmanager
def importing_ahead() -> Iterator[None]:
    """Count the body's imports as those of the first optimizer of every process forked afterwards."""
    before_bytes = resident_bytes()
    yield
    _ahead.held_bytes = max(0, resident_bytes() - before_bytes)
    _ahead.peak_bytes = peak_resident_bytes()


def imported_ahead_bytes() -> int:
    """Return what was imported ahead and is held since; 0 in a process that started by itself."""
    return _ahead.held_bytes


def peak_beyond_framework_bytes() -> int:
    """Return the most that this process, or the one that imported for it, held beyond the bare framework."""
    return max(0, max(peak_resident_bytes(), _ahead.peak_bytes) - BASELINE_BYTES)
