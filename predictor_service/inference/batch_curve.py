"""Memory and step time of one job over the batch, never falling as the batch grows.

Models are asked at powers of two; between them the curve is a straight line, and a running maximum removes dips. Both
keep a property that no regressor promises: a larger batch never seems to need less.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from cotenant.job_settings import BATCH_SIZE_MAX
from predictor_service.features.job_features import JobFeatures, JobTable, tabulate_work
from predictor_service.features.operator_times import FloatArray
from predictor_service.inference.job_work import JobWork

_BATCHES_MAX: Final = 4_096
"""Batches whose place in the grid is known again: every answer asks five times."""


class JobSamples:
    """Features of one job at any batch; those at powers of two are kept, and the last other one.

    Args:
        work: What it shares with jobs that wait for their input longer or shorter.
        input_wait_ratio: Share of a step that it waits for its input.
    """

    def __init__(self, work: JobWork, input_wait_ratio: float) -> None:
        self._work = work
        self._input_wait_ratio = input_wait_ratio
        self._kept: JobTable | None = None
        self._last: tuple[int, JobFeatures] | None = None

    def table(self, points: int) -> JobTable:
        """Features at the first points of `GRID`; further ones may follow."""
        kept = self._kept
        if kept is None or len(kept) < points:
            kept = self._kept = self._work.table(points).waiting(self._input_wait_ratio)
        return kept

    def at(self, batch: int) -> JobFeatures:
        """Features at one batch."""
        last = self._last
        if last is not None and last[0] == batch:
            return last[1]
        work = self._work
        features = (
            tabulate_work(work.graph.at(batch), work.settings, work.device).waiting(self._input_wait_ratio).row(0)
        )
        self._last = (batch, features)
        return features


@lru_cache(_BATCHES_MAX)
def neighbours(batch: int) -> tuple[int, int]:
    """Places of the grid points around a batch, equal to each other where it is one itself."""
    high = (batch - 1).bit_length()
    return (high, high) if batch == 1 << high else (high - 1, high)


@lru_cache(_BATCHES_MAX)
def nearest_point(batch: int) -> int:
    """Place of the grid point whose ratio to the batch is closest to 1."""
    high = (batch - 1).bit_length()
    return high - 1 if high and batch * batch <= 1 << (2 * high - 1) else high


def points_up_to(batch: int) -> int:
    """How many grid points are needed to know the curve at a batch: all below it and the first that is not."""
    return (batch - 1).bit_length() + 1


def largest_within(grid: tuple[int, ...], values: FloatArray, limit: float) -> int:
    """Finds the largest batch at which the curve stays within a limit, by bisection.

    Args:
        grid: Ascending batches, from 1.
        values: Model answers at the grid, same length.
        limit: In the unit of the values.

    Returns:
        A batch, at most `BATCH_SIZE_MAX`; 0 when not even one sample fits.
    """
    rising = np.maximum.accumulate(values)
    low, high = 0, min(grid[-1], BATCH_SIZE_MAX)
    while low < high:
        middle = (low + high + 1) // 2
        if float(np.interp(middle, grid, rising)) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
