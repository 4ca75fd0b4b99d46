"""Whether an input resembles what a model was trained on.

Two tests, both must pass: no column far outside its training range, and the nearest training row no farther than
training rows of one group are from those of other groups. The second one makes the flag agree with the intervals,
which were calibrated on held-out groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.regressors.interface import FeatureArray, FloatArray

BoolArray = npt.NDArray[np.bool_]

RANGE_MARGIN: Final = 0.25
"""Share of a column's training range that an input may lie outside of it."""
MARGIN_MAX: Final = float(np.log(2.0))
"""Sizes are logarithms over ten orders of magnitude, of which a quarter would be much: twice the largest at most."""
ROWS_MAX: Final = 512
QUERIES_MAX: Final = 2_048
"""Training rows, evenly spaced, whose distance to rows of other groups is measured; each costs a pass over all rows."""
_DISTANCE_QUANTILE: Final = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingDomain:
    """The region that training rows cover.

    Attributes:
        low: Smallest value accepted per column.
        high: Largest value accepted per column.
        scale: Standard deviation per column; columns that never varied have 1.
        rows: Some training rows divided by `scale`, shape (rows, columns).
        distance_max: Largest distance to the nearest row, in standard deviations per square root of columns.
    """

    low: FloatArray
    high: FloatArray
    scale: FloatArray
    rows: FloatArray
    distance_max: float

    @cached_property
    def trained(self) -> tuple[FloatArray, FloatArray]:
        """Smallest and largest training value per column."""
        width = self.high - self.low
        share = RANGE_MARGIN / (1.0 + 2.0 * RANGE_MARGIN)
        margin = np.minimum(share * width, MARGIN_MAX)
        return self.low + margin, self.high - margin

    def excess(self, features: FeatureArray) -> FloatArray:
        """How far the column farthest outside of what was trained is, in its own unit; 0 inside.

        Returns:
            On either side, and above only; shape (2, rows).
        """
        low, high = self.trained
        above = (features - high).max(axis=1)
        beyond = np.maximum(above, (low - features).max(axis=1))
        return np.maximum(np.stack((beyond, above)) - _ROUNDING, 0.0)

    def excess_at(self, place: int, value: float) -> tuple[float, float]:
        """As `excess`, of one value of a column by its place."""
        low, high = self.trained
        above = max(value - float(high[place]), _ROUNDING)
        return max(float(low[place]) - value, above) - _ROUNDING, above - _ROUNDING

    def outside(self, row: FloatArray) -> list[int]:
        """Places of the columns of one input that are not accepted, farthest outside first."""
        # Plain floats: few columns are asked about, and six calls of numpy cost more than all of them.
        limits = zip(row.tolist(), *self._accepted, strict=True)
        beyond = {place: max(value - high, low - value) for place, (value, low, high) in enumerate(limits)}
        return sorted((place for place, far in beyond.items() if far > 0), key=lambda place: -beyond[place])

    def farthest(self, row: FloatArray) -> tuple[list[int], FloatArray]:
        """Places of the columns in which one input differs most from its nearest training row, and that row."""
        nearest = self.rows[np.square(self.rows - row / self.scale).sum(axis=1).argmin()]
        apart = np.abs(nearest - row / self.scale)
        return np.argsort(-apart, kind="stable").tolist(), nearest * self.scale

    def contains(self, features: FeatureArray) -> BoolArray:
        """Returns for every row, shape (rows, columns), whether it resembles the training rows."""
        in_range: BoolArray = np.logical_and.reduce((features >= self.low) & (features <= self.high), axis=1)
        if not in_range.any():
            return in_range
        for start in range(0, len(features), _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            near = self._known.distances(features[chunk] / self.scale) <= self.distance_max
            in_range[chunk] &= near
        return in_range

    @cached_property
    def _accepted(self) -> tuple[list[float], list[float]]:
        return self.low.tolist(), self.high.tolist()

    @cached_property
    def _known(self) -> _KnownRows:
        return _KnownRows(self.rows)


_CHUNK_ROWS: Final = 8192
_ROUNDING: Final = 1e-5
"""Columns are 32 bits wide where they are asked."""


def learn_domain(features: FeatureArray, groups: Sequence[frozenset[str]]) -> TrainingDomain:
    """Learns the region from training rows.

    Args:
        features: Shape (rows, columns).
        groups: Groups of each row.
    """
    low, high = features.min(axis=0).astype(np.float64), features.max(axis=0).astype(np.float64)
    margin = np.minimum(RANGE_MARGIN * (high - low), MARGIN_MAX) + 1e-6
    deviation = features.std(axis=0).astype(np.float64)
    scale = np.where(deviation > 1e-9, deviation, 1.0)
    scaled = features.astype(np.float64) / scale
    distances = []
    for index in range(0, len(groups), -(-len(groups) // QUERIES_MAX)):
        members = groups[index]
        unrelated = [row for row, other in enumerate(groups) if not members & other]
        if unrelated:
            distances.append(float(_KnownRows(scaled[unrelated]).distances(scaled[index : index + 1])[0]))
    step = max(1, -(-len(scaled) // ROWS_MAX))
    return TrainingDomain(
        low=low - margin,
        high=high + margin,
        scale=scale,
        rows=np.unique(scaled, axis=0)[::step],
        distance_max=float(np.quantile(distances, _DISTANCE_QUANTILE)) if distances else 0.0,
    )


class _KnownRows:
    """Rows with what every question about distances to them needs again."""

    def __init__(self, rows: FloatArray) -> None:
        self._minus_twice = -2.0 * rows.T
        self._squares = (rows**2).sum(axis=1)

    def distances(self, rows: FloatArray) -> FloatArray:
        """Distance of each row to the nearest known one, divided by the square root of the number of columns."""
        squares = rows @ self._minus_twice  # one large matrix, changed in place: most of a question about pairs
        squares += self._squares
        least = squares.min(axis=1) + (rows**2).sum(axis=1)
        nearest: FloatArray = np.sqrt(np.maximum(least, 0.0) / rows.shape[1])
        return nearest
