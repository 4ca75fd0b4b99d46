"""Intervals of slowdowns that hold on groups never seen, although few were.

Residuals of held-out rows are measured in units of what a process over pairs says of its own uncertainty about each of
them, so that pairs of known jobs are promised more than pairs of jobs that resemble nothing. The quantile of what
remains is stretched by the number of groups that taught it. Where there is no process, one quantile serves all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from predictor_service.learning.problem import FloatArray, Problem
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.group_stretch import stretch_for_groups


class SpreadModel(Protocol):
    """Knows how uncertain it is."""

    def spread(self, problem: Problem) -> FloatArray:
        """Standard deviation of ln(1 + slowdown) about the prediction, above 0, shape (rows,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairBounds:
    """What the held-out rows taught of errors.

    Attributes:
        scores: Residuals in ln(1 + slowdown) divided by their spread.
        model: Gives the spread of other rows; None = it is 1 everywhere.
    """

    scores: ConformalBounds
    model: SpreadModel | None

    def half_width(self, pairs: Problem, confidence: float) -> FloatArray:
        """Half the width of the central interval of each pair, in ln(1 + slowdown), shape (rows,)."""
        stretch = stretch_for_groups(self.scores.groups, confidence)
        return self._spread(pairs) * self.scores.half_width(confidence) * stretch

    def upper_offset(self, pairs: Problem, confidence: float) -> FloatArray:
        """What is added to a prediction so that this share of measured values stays below, shape (rows,)."""
        return self._spread(pairs) * self.scores.upper_offset(confidence)

    def _spread(self, pairs: Problem) -> FloatArray:
        return np.ones(len(pairs)) if self.model is None else self.model.spread(pairs)


def learn_pair_bounds(
    residuals: FloatArray, groups: int, model: SpreadModel | None = None, spread: FloatArray | None = None
) -> PairBounds:
    """Learns from rows that were held out.

    Args:
        residuals: Measured minus predicted, in ln(1 + slowdown), shape (rows,), at least one.
        groups: Number of groups that were held out one after the other.
        model: Whose spread it is.
        spread: Of each of the rows as if its group had not been seen, shape (rows,); None = 1.
    """
    if model is None or spread is None:
        return PairBounds(scores=calibrate(residuals, groups), model=None)
    return PairBounds(scores=calibrate(residuals / spread, groups), model=model)
