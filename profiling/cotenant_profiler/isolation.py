"""Proof that the device core was ours alone: what ran there besides the jobs under measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.idle_cores import read_idle_times_ns
from cotenant_profiler import system_clock


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreReading:
    """State of the device core at one instant.

    Attributes:
        at_ns: CLOCK_MONOTONIC, nanoseconds.
        idle_ns: Time in which the core was idle since boot, nanoseconds.
        own_ns: CPU time of the watched processes, nanoseconds.
        elsewhere_idle_ns: Time in which the other cores were idle since boot, mean over them, nanoseconds.
    """

    at_ns: int
    idle_ns: int
    own_ns: int
    elsewhere_idle_ns: int


def read_core(core: int, pids: Sequence[int]) -> CoreReading:
    """Return the state of `core` and of our processes `pids` now."""
    idle_ns = read_idle_times_ns()
    own_ns = sum(system_clock.processor_time_ns(pid) for pid in pids)
    others_ns = [value for name, value in idle_ns.items() if name != core]
    at_ns = system_clock.now_ns()
    return CoreReading(
        at_ns=at_ns,
        idle_ns=idle_ns[core],
        own_ns=own_ns,
        # Without another core there is none that works.
        elsewhere_idle_ns=sum(others_ns) // len(others_ns) if others_ns else at_ns,
    )


def foreign_ratio(before: CoreReading, after: CoreReading) -> float:
    """Return the share of the time between two readings in which the core worked for others, 0 to 1.

    Time that the hypervisor took away counts as foreign too. The kernel tells idle time in hundredths of a second, so a
    window of 2 s is known to half a percent.
    """
    elapsed_ns = after.at_ns - before.at_ns
    foreign_ns = elapsed_ns - (after.idle_ns - before.idle_ns) - (after.own_ns - before.own_ns)
    return min(1.0, max(0.0, foreign_ns / elapsed_ns))


def elsewhere_ratio(before: CoreReading, after: CoreReading) -> float:
    """Return how busy the other cores were between two readings, 0 to 1.

    It does not spoil a run, but cores share a cache, a memory bus and a power budget: knowing it explains noise.
    """
    idle_ratio = (after.elsewhere_idle_ns - before.elsewhere_idle_ns) / (after.at_ns - before.at_ns)
    return min(1.0, max(0.0, 1.0 - idle_ratio))
