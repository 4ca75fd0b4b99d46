"""Intervals of slowdowns that hold on groups never seen, although few were.

Residuals of held-out rows are measured in units of what a process over pairs says of its own uncertainty about each of
them, so that pairs of known jobs are promised more than pairs of jobs that resemble nothing. Of what remains, the
quantile of all rows is stretched by the number of groups that taught it, and an interval is at least as wide as the
worst of the parts that were held out together needed. Where there is no process, rows differ in nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from predictor_service.learning.learning_task import FloatArray, LearningTask
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.few_groups_factor import few_groups_factor


class SpreadModel(Protocol):
    """Knows how uncertain it is."""

    def spread(self, learning_task: LearningTask) -> FloatArray:
        """Standard deviation of ln(1 + slowdown) about the prediction, above 0, shape (rows,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairBounds:
    """What the held-out rows taught of errors.

    Attributes:
        scores: Residuals in ln(1 + slowdown) divided by their spread.
        parts: The same of each part that was held out together.
        model: Gives the spread of other rows; None = it is 1 everywhere.
    """

    scores: ConformalBounds
    parts: Sequence[ConformalBounds]
    model: SpreadModel | None

    def half_width(self, pairs: LearningTask, confidence: float) -> FloatArray:
        """Half the width of the central interval of each pair, in ln(1 + slowdown), shape (rows,)."""
        of_all = self.scores.half_width(confidence) * few_groups_factor(self.scores.groups, confidence)
        return self._spread(pairs) * max(of_all, *(part.half_width(confidence) for part in self.parts), 0.0)

    def upper_offset(self, pairs: LearningTask, confidence: float) -> FloatArray:
        """What is added to a prediction so that this share of measured values stays below, shape (rows,)."""
        return self._spread(pairs) * self.scores.upper_offset(confidence)

    def _spread(self, pairs: LearningTask) -> FloatArray:
        return np.ones(len(pairs)) if self.model is None else self.model.spread(pairs)


def learn_pair_bounds(
    residuals: FloatArray,
    part_rows: Sequence[int],
    groups: int,
    model: SpreadModel | None = None,
    spread: FloatArray | None = None,
) -> PairBounds:
    """Learns from rows that were held out.

    Args:
        residuals: Measured minus predicted, in ln(1 + slowdown), one part after the other, shape (rows,), at least one.
        part_rows: How many rows each part that was held out together has, each above 0.
        groups: Number of groups among all of them.
        model: Whose spread it is.
        spread: Of each of the rows as if its group had not been seen, shape (rows,); None = 1.
    """
    scores = residuals if spread is None else residuals / spread
    ends = np.cumsum(part_rows)
    return PairBounds(
        scores=calibrate(scores, groups),
        parts=[calibrate(scores[end - rows : end], 1) for end, rows in zip(ends, part_rows, strict=True)],
        model=None if spread is None else model,
    )
