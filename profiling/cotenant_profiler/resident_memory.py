"""Peak resident memory of this process above what it held before: the device memory of the stand-in."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
# Written to clear_refs it sets the peak back to the present size (proc(5)).
_RESET_PEAK = "5"


@dataclass(slots=True)
class PeakMemory:
    """Resident memory of a measurement window.

    Attributes:
        baseline_bytes: Held before it: interpreter and libraries.
        peak_bytes: Most that was held during it above the baseline; known once it has ended.
    """

    baseline_bytes: int
    peak_bytes: int = 0


@contextlib.contextmanager
def peak_above() -> Iterator[PeakMemory]:
    """Measure the body's peak resident memory above what this process holds now."""
    gc.collect()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    memory = PeakMemory(baseline_bytes=_status_bytes("VmRSS"))
    yield memory
    memory.peak_bytes = max(0, _status_bytes("VmHWM") - memory.baseline_bytes)


def resident_bytes() -> int:
    """Return the memory that this process holds now."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """Return the most that this process ever held."""
    return _status_bytes("VmHWM")


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
