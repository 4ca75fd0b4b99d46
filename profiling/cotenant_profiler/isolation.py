"""Proof that the device core was ours alone: what ran there besides the jobs under measurement."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant_profiler import system_clock

_STATISTICS = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Columns of a cpu line in proc(5) that are not work: idle and iowait. Guest time is contained in user time.
_IDLE_COLUMNS = (3, 4)
_GUEST_COLUMNS = (8, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReading:
    """State of the device core at one instant.

    Attributes:
        at_ns: CLOCK_MONOTONIC, nanoseconds.
        busy_ns: Time in which the core was not idle since boot, nanoseconds.
        own_ns: CPU time of the watched processes, nanoseconds.
        elsewhere_ns: Time in which the other cores were not idle since boot, mean over them, nanoseconds.
    """

    at_ns: int
    busy_ns: int
    own_ns: int
    elsewhere_ns: int


def read_core(core: int, pids: Sequence[int]) -> CoreReading:
    """Return the state of `core` and of our processes `pids` now."""
    busy_ns = busy_times_ns(_STATISTICS.read_text())
    own_ns = sum(system_clock.processor_time_ns(pid) for pid in pids)
    others_ns = [value for name, value in busy_ns.items() if name != core]
    return CoreReading(
        at_ns=system_clock.now_ns(),
        busy_ns=busy_ns[core],
        own_ns=own_ns,
        elsewhere_ns=sum(others_ns) // max(1, len(others_ns)),
    )


def busy_times_ns(statistics: str) -> dict[int, int]:
    """Return the non-idle time of every core since boot from the text of /proc/stat, nanoseconds."""
    skipped = (*_IDLE_COLUMNS, *_GUEST_COLUMNS)
    times_ns = {}
    for line in statistics.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = sum(int(value) for index, value in enumerate(columns) if index not in skipped)
            times_ns[int(name.removeprefix("cpu"))] = ticks * 1_000_000_000 // _TICKS_PER_S
    return times_ns


def foreign_ratio(before: CoreReading, after: CoreReading) -> float:
    """Return the share of the time between two readings in which the core worked for others, 0 to 1.

    Time that the hypervisor took away counts as foreign too. The kernel counts busy time in hundredths of a second, so
    a window of 2 s is known to half a percent.
    """
    elapsed_ns = after.at_ns - before.at_ns
    foreign_ns = (after.busy_ns - before.busy_ns) - (after.own_ns - before.own_ns)
    return min(1.0, max(0.0, foreign_ns / elapsed_ns))


def elsewhere_ratio(before: CoreReading, after: CoreReading) -> float:
    """Return how busy the other cores were between two readings, 0 to 1.

    It does not spoil a run, but cores share a cache, a memory bus and a power budget: knowing it explains noise.
    """
    return min(1.0, (after.elsewhere_ns - before.elsewhere_ns) / (after.at_ns - before.at_ns))
