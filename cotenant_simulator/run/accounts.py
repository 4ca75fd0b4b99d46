"""Sums over simulated time, and the laws that they must obey in every run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cotenant_simulator.errors import BrokenSimulationError
from cotenant_simulator.run.attempts import GpuOccupancy
from cotenant_simulator.run.records import JobResult, UsageInterval

MOMENTS_MAX = 1_000


@dataclass(slots=True, kw_only=True)
class Curve:
    """Means over intervals of equal length; twice as long intervals whenever there are too many."""

    stretch_ms: int = 1_000
    areas: list[list[float]] = field(default_factory=list)
    began_at_ms: int = -1

    def add(self, from_ms: int, until_ms: int, values: tuple[float, ...]) -> None:
        """Add values that held from one instant to another."""
        if self.began_at_ms < 0:
            self.began_at_ms = from_ms
        while until_ms - self.began_at_ms > self.stretch_ms * MOMENTS_MAX:
            self._double()
        at_ms = from_ms
        while at_ms < until_ms:
            index = (at_ms - self.began_at_ms) // self.stretch_ms
            while len(self.areas) <= index:
                self.areas.append([0.0] * len(values))
            end_ms = min(self.began_at_ms + (index + 1) * self.stretch_ms, until_ms)
            for position, value in enumerate(values):
                self.areas[index][position] += value * (end_ms - at_ms)
            at_ms = end_ms

    def _double(self) -> None:
        self.stretch_ms *= 2
        odd = [*self.areas[1::2], [0.0] * len(self.areas[0])] if self.areas else []
        self.areas = [
            [one + two for one, two in zip(left, right, strict=True)]
            for left, right in zip(self.areas[0::2], odd, strict=False)
        ]

    def usage_intervals(self, ended_at_ms: int) -> list[UsageInterval]:
        """Return the means."""
        found: list[UsageInterval] = []
        for index, (held, used, waiting) in enumerate(self.areas):
            from_ms = self.began_at_ms + index * self.stretch_ms
            until_ms = min(from_ms + self.stretch_ms, ended_at_ms)
            length = max(until_ms - from_ms, 1)
            found.append(
                UsageInterval(
                    from_ms=from_ms,
                    until_ms=until_ms,
                    held_gpus=held / length,
                    utilization=used / length,
                    waiting_jobs=waiting / length,
                )
            )
        return found


@dataclass(slots=True, kw_only=True)
class Accounts:
    """What has passed until `now_ms`, in job milliseconds and GPU milliseconds.

    Attributes:
        jobs: Submitted and not yet ended.
        job_ms: Integral of `jobs`.
        gpu_ms_held: Of the GPUs that hold a job.
        gpu_ms_utilized: Of their true utilization.
        job_gpu_ms: Of the GPUs of every attempt; a GPU with two jobs counts twice.
        curve: Kept for pictures; None = not wanted.
    """

    occupancy: GpuOccupancy
    now_ms: int = 0
    jobs: int = 0
    job_ms: int = 0
    gpu_ms_held: int = 0
    gpu_ms_utilized: float = 0.0
    job_gpu_ms: int = 0
    curve: Curve | None = None

    def advance(self, now_ms: int) -> None:
        """Let time pass.

        Raises:
            BrokenSimulationError: It would run backwards, or more GPUs are held than exist.
        """
        passed_ms, occupancy = now_ms - self.now_ms, self.occupancy
        if passed_ms < 0:
            raise BrokenSimulationError(f"the clock would go back from {self.now_ms} to {now_ms} ms")
        if occupancy.held_gpus > len(occupancy.gpus):
            raise BrokenSimulationError(f"{occupancy.held_gpus} of {len(occupancy.gpus)} GPUs are held")
        if self.curve is not None and passed_ms and self.jobs:
            waiting = self.jobs - len(occupancy.attempts)
            self.curve.add(self.now_ms, now_ms, (occupancy.held_gpus, occupancy.utilization, waiting))
        self.job_ms += self.jobs * passed_ms
        self.gpu_ms_held += occupancy.held_gpus * passed_ms
        self.gpu_ms_utilized += occupancy.utilization * passed_ms
        self.job_gpu_ms += occupancy.job_gpus * passed_ms
        self.now_ms = now_ms


def check_conservation(accounts: Accounts, results: Iterable[JobResult], *, gpu_ms_by_jobs: int) -> None:
    """Check what must hold after every run.

    Little's law for a finished run: the integral of the number of jobs in the system is the sum of the times that they
    spent there. And every GPU second that an attempt held belongs to a job, and to no more GPUs than there are.

    Args:
        accounts: The sums.
        results: Every job.
        gpu_ms_by_jobs: GPU time of the attempts, summed when they ended.

    Raises:
        BrokenSimulationError: Something does not hold.
    """
    stays_ms = 0
    for result in results:
        until_ms = accounts.now_ms if result.finished_at_ms < 0 else result.finished_at_ms
        stays_ms += max(until_ms - result.submitted_at_ms, 0)
    if stays_ms != accounts.job_ms:
        raise BrokenSimulationError(f"Little's law: {accounts.job_ms} job ms passed, the jobs stayed {stays_ms}")
    if gpu_ms_by_jobs != accounts.job_gpu_ms:
        raise BrokenSimulationError(f"{accounts.job_gpu_ms} GPU ms passed, the attempts held {gpu_ms_by_jobs}")
    if not 0 <= accounts.gpu_ms_held <= accounts.job_gpu_ms:
        raise BrokenSimulationError(f"{accounts.gpu_ms_held} GPU ms held by jobs of {accounts.job_gpu_ms}")
