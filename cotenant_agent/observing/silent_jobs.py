"""Steps of jobs that print none, from the period of their utilization: sampled between the observer's beats."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.observing.utilization_period import SAMPLES_MIN, find_period
from cotenant_agent.progress_reading.progress import ProgressReport
from cotenant_agent.records import AttemptKey, JobProcesses

SAMPLES_KEPT_MAX: Final = 600
JOBS_SAMPLED_MAX: Final = 32
_FILLED_MAX: Final = 10
"""Samples that may be late one after the other; the next one tells their mean."""


class SilentJobs:
    """Samples jobs and counts the periods of each.

    Args:
        inventory: The devices, read here only: it tells what was used since its last reading.
        interval_s: Between two samples.
    """

    def __init__(self, inventory: GpuInventory, interval_s: float) -> None:
        self._inventory = inventory
        self.interval_s = interval_s
        self._jobs: dict[AttemptKey, JobProcesses] = {}
        self._periods: dict[AttemptKey, _Periods] = {}

    @property
    def are_there(self) -> bool:
        """Say whether there is anything to sample."""
        return bool(self._jobs)

    def watch(self, jobs: Mapping[AttemptKey, JobProcesses]) -> None:
        """Sample these from now on, as far as they are not too many, and no others."""
        self._jobs = dict(list(jobs.items())[:JOBS_SAMPLED_MAX])
        self._periods = {key: self._periods.get(key) or _Periods(self.interval_s) for key in self._jobs}

    def rename(self, before: AttemptKey, key: AttemptKey) -> None:
        """Go on with a job under another key."""
        if before in self._jobs:
            self._jobs[key] = self._jobs.pop(before)
        if before in self._periods:
            self._periods[key] = self._periods.pop(before)

    def restart(self, key: AttemptKey) -> None:
        """Forget the samples of a job: it shares its device with others than before."""
        if key in self._periods:
            self._periods[key].restart()

    def sample(self, now_ns: int) -> None:
        """Take one sample of each."""
        if not self._jobs:
            return
        used = self._inventory.observe(self._jobs).jobs
        for key, periods in self._periods.items():
            periods.add(now_ns, used[key].utilization_ratio if key in used else None)

    def steps(self, key: AttemptKey, now_ns: int) -> list[ProgressReport]:
        """Return how many periods have passed, where there is one."""
        periods = self._periods.get(key)
        return periods.count(now_ns) if periods is not None else []


class _Periods:
    """The samples of one job, and the periods counted in them."""

    def __init__(self, interval_s: float) -> None:
        self._interval_ns = int(interval_s * 1e9)
        self._samples: deque[tuple[int, float]] = deque(maxlen=SAMPLES_KEPT_MAX)
        self._counted = 0.0
        self._counted_until_ns = 0

    def add(self, at_ns: int, busy_ratio: float | None) -> None:
        """Add a sample; a late one stands for those that were missed, and far too late a one begins a new series."""
        if busy_ratio is None:
            return
        missed = 0
        if self._samples:
            newest_ns = self._samples[-1][0]
            missed = max(round((at_ns - newest_ns) / self._interval_ns) - 1, 0)
            if missed > _FILLED_MAX:
                self._samples.clear()
                missed = 0
            pause_ns = (at_ns - newest_ns) // (missed + 1)
            self._samples.extend((newest_ns + pause_ns * number, busy_ratio) for number in range(1, missed + 1))
        self._samples.append((at_ns, busy_ratio))

    def restart(self) -> None:
        """Forget the samples; what was counted stays counted."""
        self._samples.clear()

    def count(self, now_ns: int) -> list[ProgressReport]:
        """Return the newest whole period, at the instant at which it ended."""
        since_ns, self._counted_until_ns = self._counted_until_ns, now_ns
        period_ns = self._period_ns()
        if not period_ns:
            self._counted_until_ns = 0
            return []
        # What passed before the period was known counts for nothing.
        self._counted += (now_ns - since_ns) / period_ns if since_ns else 0.0
        whole = int(self._counted)
        return [ProgressReport(step=whole, at_ns=now_ns - int((self._counted - whole) * period_ns))]

    def _period_ns(self) -> float:
        if len(self._samples) < SAMPLES_MIN:
            return 0.0
        interval_ns = (self._samples[-1][0] - self._samples[0][0]) / (len(self._samples) - 1)
        return (find_period([ratio for _, ratio in self._samples]) or 0.0) * interval_ns
