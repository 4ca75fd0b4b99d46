"""Intervals from what held-out groups taught: grouped cross-conformal residuals, one stored list per target.

The residual of every row comes from a model that has not seen the row's group. The bound at a confidence is the
finite-sample quantile of those residuals. Bounds above 95 % count groups instead of rows, because rows of one family
err alike; where there are too few to support the confidence, the largest residual times a safety factor stands in,
and the model card says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.regressors.interface import FloatArray

SAFETY_FACTOR: Final = 1.25
"""Applied to the largest residual when there are too few for the confidence asked for."""
STORED_MAX: Final = 1_000
ROW_CONFIDENCE_MAX: Final = 0.95
"""Up to here rows are counted, beyond it groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformalBounds:
    """Residuals (measured minus predicted, in the model's own scale) that become bounds.

    Attributes:
        residuals: Sorted; at most `STORED_MAX`, evenly spaced quantiles when there were more.
        rows: Residuals that the stored ones stand for.
        groups: Groups that they come from.
    """

    residuals: tuple[float, ...]
    rows: int
    groups: int

    def half_width(self, confidence: float) -> float:
        """Half the width of the central interval.

        Args:
            confidence: Nominal coverage, above 0 and below 1.
        """
        return self._quantile(np.sort(np.abs(np.array(self.residuals))), confidence)

    def upper_offset(self, confidence: float) -> float:
        """What is added to a prediction so that this share of measured values stays below; never below 0."""
        return max(0.0, self._quantile(np.array(self.residuals), confidence))

    def is_supported(self, confidence: float) -> bool:
        """Whether there are enough residuals for a finite-sample quantile."""
        count = self._count(confidence)
        return math.ceil((count + 1) * confidence) <= count

    def _count(self, confidence: float) -> int:
        return self.rows if confidence <= ROW_CONFIDENCE_MAX else self.groups

    def _quantile(self, ascending: FloatArray, confidence: float) -> float:
        if not self.is_supported(confidence):
            largest = float(ascending[-1])
            return largest * SAFETY_FACTOR if largest > 0 else largest
        count = self._count(confidence)
        # One unseen group more shares the weight evenly: it may lie anywhere, so its part is taken from the top.
        level = (count + 1) * confidence / count
        return float(ascending[min(len(ascending) - 1, math.ceil(level * len(ascending)) - 1)])


def calibrate(residuals: FloatArray, groups: int) -> ConformalBounds:
    """Stores residuals of held-out rows.

    Args:
        residuals: Measured minus predicted, shape (rows,), at least one.
        groups: Number of groups among them.
    """
    ascending = np.sort(residuals)
    if len(ascending) > STORED_MAX:
        ascending = np.quantile(ascending, np.linspace(0.0, 1.0, STORED_MAX), method="higher")
    return ConformalBounds(
        residuals=tuple(round(float(value), 9) for value in ascending), rows=len(residuals), groups=groups
    )
