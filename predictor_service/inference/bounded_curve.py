"""A predicted quantity with its bounds over the batch, computed once and then only read."""

from __future__ import annotations

from itertools import accumulate
from typing import TypeAlias

import numpy as np

from predictor_service.features.operator_times import FloatArray
from predictor_service.registry.served_version import Bounded

CurvePoint: TypeAlias = tuple[float, float, float, float]
"""Value, lower, upper and 99 % bound at one batch, in the target's unit; a record of it costs more than reading it."""


class BoundedCurve:
    """Straight lines between powers of two; the numbers are those of numpy.interp.

    Value and bounds never fall, but for the upper end of the interval: where less is known of a small batch than of a
    large one, its upper end may be the higher one.

    Plain floats on purpose: reading four numbers costs one microsecond, four calls of numpy.interp cost thirty.

    Args:
        bounded: Model answers at 1, 2, 4, ..., shape (points,).
    """

    def __init__(self, bounded: Bounded) -> None:
        value = list(accumulate(bounded.value.tolist(), max))
        lower, upper_99 = accumulate(bounded.lower.tolist(), max), accumulate(bounded.upper_99.tolist(), max)
        self._points = list(zip(value, lower, map(max, bounded.upper.tolist(), value), upper_99, strict=True))
        # Slope of the line that ends at a point, once it was read.
        self._slopes: list[tuple[float, float, float, float] | None] = [None] * len(self._points)

    @property
    def points(self) -> int:
        """Powers of two that are known."""
        return len(self._points)

    @property
    def upper_99(self) -> FloatArray:
        """The 99 % bound at the powers of two."""
        return np.array([upper_99 for _, _, _, upper_99 in self._points])

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
        by_value, by_lower, by_upper, by_upper_99 = self._slopes[index] or self._measure_slope(index)
        return (
            by_value * distance + value,
            by_lower * distance + lower,
            by_upper * distance + upper,
            by_upper_99 * distance + upper_99,
        )

    def _measure_slope(self, index: int) -> tuple[float, float, float, float]:
        start = 1 << (index - 1)
        value, lower, upper, upper_99 = self._points[index - 1]
        to_value, to_lower, to_upper, to_upper_99 = self._points[index]
        slope = (
            (to_value - value) / start,
            (to_lower - lower) / start,
            (to_upper - upper) / start,
            (to_upper_99 - upper_99) / start,
        )
        self._slopes[index] = slope
        return slope


def read_between(low: CurvePoint, high: CurvePoint, start: int, batch: int) -> CurvePoint:
    """Reads the straight line between two adjacent powers of two.

    Args:
        low: What holds at `start`.
        high: What holds at twice `start`.
        start: A power of two.
        batch: From `start` to twice `start`.
    """
    weight = (batch - start) / start
    value, lower, upper, upper_99 = low
    to_value, to_lower, to_upper, to_upper_99 = high
    return (
        value + weight * (to_value - value),
        lower + weight * (to_lower - lower),
        upper + weight * (to_upper - upper),
        upper_99 + weight * (to_upper_99 - upper_99),
    )
