"""A predicted quantity with its bounds over the batch, computed once and then only read."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from predictor_service.features.job_features import FloatArray
from predictor_service.registry.served_version import Bounded


class CurvePoint(NamedTuple):
    """What the curve says at one batch, in the target's unit."""

    value: float
    lower: float
    upper: float
    upper_99: float


class BoundedCurve:
    """Straight lines between powers of two; the numbers are those of numpy.interp.

    Value and bounds never fall, but for the upper end of the interval: where less is known of a small batch than of a
    large one, its upper end may be the higher one.

    Plain floats on purpose: reading four numbers costs one microsecond, four calls of numpy.interp cost thirty.

    Args:
        bounded: Model answers at 1, 2, 4, ..., shape (points,).
    """

    def __init__(self, bounded: Bounded) -> None:
        value, lower, upper_99 = (
            np.maximum.accumulate(each) for each in (bounded.value, bounded.lower, bounded.upper_99)
        )
        curves = (value, lower, np.maximum(bounded.upper, value), upper_99)
        self._points = [CurvePoint(*values) for values in zip(*(curve.tolist() for curve in curves), strict=True)]
        # Slope of every line that ends at a point; no line ends at the first one.
        self._slopes = [CurvePoint(0.0, 0.0, 0.0, 0.0)]
        for index, (low, high) in enumerate(itertools.pairwise(self._points)):
            rises = ((after - before) / (1 << index) for before, after in zip(low, high, strict=True))
            self._slopes.append(CurvePoint(*rises))

    @property
    def points(self) -> int:
        """Powers of two that are known."""
        return len(self._points)

    @property
    def upper_99(self) -> FloatArray:
        """The 99 % bound at the powers of two."""
        return np.array([point.upper_99 for point in self._points])

    def at(self, batch: int) -> CurvePoint:
        """Reads the curve.

        Args:
            batch: 1 to the largest power of two that is known.
        """
        index = (batch - 1).bit_length()
        if batch == 1 << index:
            return self._points[index]
        distance = batch - (1 << (index - 1))
        value, lower, upper, upper_99 = self._points[index - 1]
        by_value, by_lower, by_upper, by_upper_99 = self._slopes[index]
        return CurvePoint(
            by_value * distance + value,
            by_lower * distance + lower,
            by_upper * distance + upper,
            by_upper_99 * distance + upper_99,
        )


def read_between(low: CurvePoint, high: CurvePoint, start: int, batch: int) -> CurvePoint:
    """Reads the straight line between two neighbouring powers of two.

    Args:
        low: What holds at `start`.
        high: What holds at twice `start`.
        start: A power of two.
        batch: From `start` to twice `start`.
    """
    weight = (batch - start) / start
    return CurvePoint(
        low.value + weight * (high.value - low.value),
        low.lower + weight * (high.lower - low.lower),
        low.upper + weight * (high.upper - low.upper),
        low.upper_99 + weight * (high.upper_99 - low.upper_99),
    )
