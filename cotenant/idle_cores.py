"""How long each core of this machine was idle, by which it is known what works there besides the watched processes.

Only idle time is timed by the kernel. Its columns of work count whose turn it was at each tick of the clock, and a job
under a quota is met there too often: with periods of 5 ms, a third of a core was counted as .6.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STATISTICS: Final = Path("/proc/stat")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE_COLUMNS: Final = (3, 4)
"""Of proc(5): idle, and waiting for the disk."""


def read_idle_times_ns() -> dict[int, int]:
    """Return the idle time of every core that is online, nanoseconds since boot."""
    return idle_times_ns(_STATISTICS.read_text())


def idle_times_ns(statistics: str) -> dict[int, int]:
    """Return the same from the text of /proc/stat."""
    times_ns = {}
    for line in statistics.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = sum(int(columns[index]) for index in _IDLE_COLUMNS)
            times_ns[int(name.removeprefix("cpu"))] = ticks * 1_000_000_000 // _TICKS_PER_S
    return times_ns
