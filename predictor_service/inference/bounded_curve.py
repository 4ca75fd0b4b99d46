"""A predicted quantity with its bounds over the batch, computed once and then only read."""

from __future__ import annotations

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
    """Straight lines between powers of two, never falling; the numbers are those of `batch_curve.read_curve`.

    Plain floats on purpose: reading four numbers costs one microsecond, four calls of numpy.interp cost thirty.

    Args:
        bounded: Model answers at 1, 2, 4, ..., shape (points,).
    """

    def __init__(self, bounded: Bounded) -> None:
        self._value = _rising(bounded.value)
        self._lower = _rising(bounded.lower)
        self._upper = _rising(bounded.upper)
        self._upper_99 = _rising(bounded.upper_99)

    @property
    def points(self) -> int:
        """Powers of two that are known."""
        return len(self._value)

    @property
    def upper_99(self) -> FloatArray:
        """The 99 % bound at the powers of two."""
        return np.array(self._upper_99)

    def at(self, batch: int) -> CurvePoint:
        """Reads the curve.

        Args:
            batch: 1 to the largest power of two that is known.
        """
        index = (batch - 1).bit_length()
        if batch == 1 << index:
            return CurvePoint(self._value[index], self._lower[index], self._upper[index], self._upper_99[index])
        return CurvePoint(
            _between(self._value, index, batch),
            _between(self._lower, index, batch),
            _between(self._upper, index, batch),
            _between(self._upper_99, index, batch),
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
    return CurvePoint(*(before + weight * (after - before) for before, after in zip(low, high, strict=True)))


def _rising(values: FloatArray) -> list[float]:
    rising: list[float] = np.maximum.accumulate(values).tolist()
    return rising


def _between(values: list[float], index: int, batch: int) -> float:
    start = 1 << (index - 1)
    slope = (values[index] - values[index - 1]) / start
    return slope * (batch - start) + values[index - 1]
