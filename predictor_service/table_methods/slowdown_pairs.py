"""Ordered pairs as numbers: distinct jobs with what is known of them alone, and which are co-located.

Sizes and times are logarithms. What most training jobs lack is no column; a job that lacks a figure which most have
takes their mean instead of a made-up extreme. So does a job whose figure is marked as not comparable, e.g. because its
set counts another unit of step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, IndexArray, JobFacts, LearningTask

STEP: Final = "log_step_ms"
UTILIZATION: Final = "utilization_ratio"

_KNOWN: Final[Mapping[str, Callable[[JobFacts], float | None]]] = {
    STEP: lambda job: None if "step_ms" in job.labels else _logarithm(job.solo.step_ms),
    "log_batch": lambda job: None if "batch" in job.labels else _logarithm(job.batch),
    UTILIZATION: lambda job: job.solo.utilization_ratio,
    "dram_activity_ratio": lambda job: job.solo.dram_activity_ratio,
    "log_memory_bytes": lambda job: _logarithm(job.solo.memory_bytes),
    "input_wait_ratio": lambda job: job.input_wait_ratio,
}


_EDGE_MARGIN: Final = 0.25
"""Standard deviations beyond the training jobs that are still accepted."""


def _logarithm(value: float | None) -> float | None:
    return math.log(value) if value and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobScale:
    """Columns that distinguish the training jobs, and how they are scaled.

    Attributes:
        names: Of the columns.
        middle: Mean of each over the training jobs.
        spread: Standard deviation of each, above 0.
        low: Smallest scaled value of each.
        high: Largest scaled value of each.
        share: Mean utilization of the training jobs, standing in where a job's is not known; NaN where most lack it.
    """

    names: tuple[str, ...]
    middle: FloatArray
    spread: FloatArray
    low: FloatArray
    high: FloatArray
    share: float

    def keep(self, names: Sequence[str]) -> JobScale:
        """Returns the scale of some columns only; names that are no columns are left out."""
        places = [place for place, name in enumerate(self.names) if name in names]
        return JobScale(
            names=tuple(self.names[place] for place in places),
            middle=self.middle[places],
            spread=self.spread[places],
            low=self.low[places],
            high=self.high[places],
            share=self.share,
        )

    def place(self, jobs: Sequence[JobFacts]) -> FloatArray:
        """Returns scaled columns of jobs, shape (jobs, columns); 0 where a job lacks a figure.

        A job outside everything that was trained on is taken to its edge: what a job of ten times the step time does
        is better predicted by the longest step seen than by a line or a curve that runs away.
        """
        known = [[_KNOWN[name](job) for name in self.names] for job in jobs]
        values = np.array([[np.nan if value is None else value for value in row] for row in known], dtype=np.float64)
        scaled = (values.reshape(len(jobs), len(self.names)) - self.middle) / self.spread
        return np.clip(np.where(np.isfinite(scaled), scaled, 0.0), self.low, self.high)


def learn_job_scale(jobs: Sequence[JobFacts]) -> JobScale:
    """Learns the columns that most jobs have and that vary.

    Args:
        jobs: Distinct training jobs.
    """
    known = {
        name: np.array([value for job in jobs if (value := read(job)) is not None]) for name, read in _KNOWN.items()
    }
    chosen = {name: values for name, values in known.items() if 2 * len(values) > len(jobs) and np.ptp(values) > _SAME}
    middle = np.array([values.mean() for values in chosen.values()])
    spread = np.array([values.std() for values in chosen.values()])
    shares = known[UTILIZATION]
    low, high = (np.array([edge(values) for values in chosen.values()]) for edge in (np.min, np.max))
    return JobScale(
        names=tuple(chosen),
        middle=middle,
        spread=spread,
        low=(low - middle) / spread - _EDGE_MARGIN,
        high=(high - middle) / spread + _EDGE_MARGIN,
        share=float(shares.mean()) if 2 * len(shares) > len(jobs) else np.nan,
    )


_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSet:
    """Distinct jobs.

    Attributes:
        keys: Names of the jobs.
        families: Of each.
        columns: Scaled, shape (jobs, columns).
        utilization_ratio: Of each alone, NaN for all where most training jobs lack it, shape (jobs,).
    """

    keys: tuple[str, ...]
    families: tuple[str, ...]
    columns: FloatArray
    utilization_ratio: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRows:
    """Which jobs are co-located.

    Attributes:
        jobs: Distinct jobs.
        victim: Index of each row's victim, shape (rows,).
        other: Index of each row's other job, shape (rows,).
    """

    jobs: JobSet
    victim: IndexArray
    other: IndexArray

    def __len__(self) -> int:
        return len(self.victim)

    def line_columns(self) -> FloatArray:
        """Columns in which slowdown may be a straight line, shape (rows, columns).

        Both jobs' columns; where utilizations are known, by how much they exceed the device together and how often
        both want it at once.
        """
        jobs = self.jobs
        both = [jobs.columns[self.victim], jobs.columns[self.other]]
        if np.isfinite(jobs.utilization_ratio).all():
            victim, other = jobs.utilization_ratio[self.victim], jobs.utilization_ratio[self.other]
            both.append(_SHARES_WEIGHT * np.column_stack([np.maximum(victim + other - 1.0, 0.0), victim * other]))
        return np.hstack(both)

    def subset(self, rows: IndexArray) -> PairRows:
        """Returns some rows, all jobs kept."""
        return PairRows(jobs=self.jobs, victim=self.victim[rows], other=self.other[rows])


_SHARES_WEIGHT: Final = 3.0
"""Shares lie in 0 to 1; this gives them the spread of a scaled column."""


def name_job(job: JobFacts) -> str:
    """What distinguishes jobs: measured on another device or in another campaign, a job is another one."""
    return f"{job.device}|{job.labels.get('campaign', '')}|{job.job_key}"


def collect_jobs(learning_task: LearningTask) -> list[JobFacts]:
    """Distinct jobs of a learning task, by name."""
    jobs = {
        name_job(job): job
        for row in zip(learning_task.jobs, learning_task.others, strict=True)
        for job in (row[0], *row[1])
    }
    return [jobs[name] for name in sorted(jobs)]


def build_job_set(jobs: Sequence[JobFacts], scale: JobScale) -> JobSet:
    """Describes distinct jobs by a learned scale."""
    shares = [scale.share if job.solo.utilization_ratio is None else job.solo.utilization_ratio for job in jobs]
    return JobSet(
        keys=tuple(name_job(job) for job in jobs),
        families=tuple(job.family for job in jobs),
        columns=scale.place(jobs),
        utilization_ratio=np.array(shares, dtype=np.float64)
        if np.isfinite(scale.share)
        else np.full(len(jobs), np.nan),
    )


def build_pair_rows(learning_task: LearningTask, scale: JobScale) -> PairRows:
    """Builds one row per victim and co-located job; a victim of three jobs has three rows, in order."""
    jobs = collect_jobs(learning_task)
    place = {name_job(job): index for index, job in enumerate(jobs)}
    pairs = [
        (place[name_job(job)], place[name_job(other)])
        for job, others in zip(learning_task.jobs, learning_task.others, strict=True)
        for other in others
    ]
    indices = np.array(pairs, dtype=np.intp).reshape(len(pairs), 2)
    return PairRows(jobs=build_job_set(jobs, scale), victim=indices[:, 0], other=indices[:, 1])
