"""Memory and step time of one job over the batch, never falling as the batch grows.

Models are asked at powers of two; between them the curve is a straight line, and a running maximum removes dips. Both
keep a property that no regressor promises: a larger batch never seems to need less.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.job_settings import BATCH_SIZE_MAX, JobSettings
from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import FloatArray, JobFeatures, build_features
from predictor_service.inference.measured_graph import MeasuredGraph

GRID: Final = tuple(1 << exponent for exponent in range(BATCH_SIZE_MAX.bit_length() + 1) if 1 << exponent <= 1 << 20)
"""Batches at which models are asked."""


class JobSamples:
    """Features of one job at any batch; those at powers of two are kept, and the last other one.

    Args:
        graph: The graph.
        settings: How the job runs.
        device: What it runs on.
    """

    def __init__(self, graph: MeasuredGraph, settings: JobSettings, device: DeviceType) -> None:
        self._graph = graph
        self._settings = settings
        self._device = device
        self._kept: dict[int, JobFeatures] = {}
        self._last: tuple[int, JobFeatures] | None = None

    def at(self, batch: int) -> JobFeatures:
        """Features at one batch."""
        last = self._last
        if last is not None and last[0] == batch:
            return last[1]
        features = self._kept.get(batch)
        if features is None:
            features = build_features(self._graph.at(batch), self._settings, self._device, self._graph.family_codes)
            if batch & (batch - 1) == 0:
                self._kept[batch] = features
        self._last = (batch, features)
        return features

    def vectors(self, batches: tuple[int, ...]) -> FloatArray:
        """Vectors at several batches, shape (batches, len(FEATURES))."""
        return np.stack([self.at(batch).values for batch in batches])


def neighbours(batch: int) -> tuple[int, int]:
    """The grid points around a batch, equal to each other where it is one itself."""
    high = 1 << (batch - 1).bit_length()
    return (high, high) if high == batch else (high // 2, high)


def nearest_grid_point(batch: int) -> int:
    """The grid point whose ratio to the batch is closest to 1."""
    high = 1 << (batch - 1).bit_length()
    low = high >> 1
    return low if batch * batch <= low * high else high


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
