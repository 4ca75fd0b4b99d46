"""Intervals from what held-out groups taught: grouped cross-conformal residuals, one stored list per target.

The residual of every row comes from a model that has not seen the row's group. The bound at a confidence is the
finite-sample quantile of those residuals. Rows of one family err alike, so that a family says as much of the next one
as one row would: where every group has one vote, however many rows it has, groups are counted at every confidence, and
the interval holds for rows of one more group whatever the distribution of errors. Where rows have votes, bounds above
95 % still count groups. Where there are too few to support the confidence, Student's t stands in for an interval of up
to 95 %, and beyond that the largest residual times a safety factor; the model card states so.

Rows of one group err alike, so k groups say of one more what k measurements say of one more measurement: Student's t
with k - 1 degrees of freedom instead of the normal distribution, and the uncertainty of their own mean. A quantile of
rows ignores that; with four families it covers 80 % of the rows of a fifth where 90 % is nominal.
Intervals of quantiles of rows are widened by it.

Source: Lee, Barber, Willett, "Distribution-free inference with hierarchical data", arXiv:2306.06342 (the introduction;
groups that are exchangeable instead of rows).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

# Not scipy.stats, whose import takes longer than a small program's whole start.
from scipy.special import ndtri, stdtrit

from predictor_service.regressors.interface import FloatArray

SAFETY_FACTOR: Final = 1.25
"""Applied to the largest residual when there are too few for the confidence asked for."""
RELATIVES_FACTOR: Final = 2.0
"""Applied to a quantile that counts networks where families were held out, in versions learned by rules before 19."""
STORED_MAX: Final = 1_000
ROW_CONFIDENCE_MAX: Final = 0.95
"""Up to here votes are counted, beyond it groups."""
_ROUNDING: Final = 1e-9
_GROUPS_MIN: Final = 2
"""One group carries nothing about another; it is taken for two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformalBounds:
    """Residuals (measured minus predicted, in the model's own scale) that become bounds.

    Attributes:
        residuals: Sorted; at most `STORED_MAX`, evenly spaced quantiles when there were more.
        rows: Votes that the stored ones stand for: one of each row, or one of each group.
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
        ascending = np.sort(np.abs(np.array(self.residuals)))
        if self.rows == self.groups and confidence <= ROW_CONFIDENCE_MAX and not self.is_supported(confidence):
            share = float(ascending[math.ceil(confidence * len(ascending) - _ROUNDING) - 1])
            return share * few_groups_factor(self.groups, confidence)
        return self._quantile(ascending, confidence)

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
        return float(ascending[min(len(ascending) - 1, math.ceil(level * len(ascending) - _ROUNDING) - 1)])


def calibrate(residuals: FloatArray, groups: int) -> ConformalBounds:
    """Stores residuals of held-out rows, each with one vote.

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


def calibrate_groups(residuals: FloatArray, groups: Sequence[frozenset[str]]) -> ConformalBounds:
    """Stores residuals of held-out rows so that each group has one vote, which its rows share.

    Args:
        residuals: Measured minus predicted, shape (rows,), at least one.
        groups: Of each row, at least one.
    """
    rows_of = Counter(name for members in groups for name in members)
    weight = np.array([sum(1.0 / rows_of[name] for name in members) for members in groups])
    ascending = np.argsort(residuals, kind="stable")
    # A multiple of the groups, so that a whole number of places stands for each.
    places = len(residuals) if len(set(weight)) == 1 else STORED_MAX
    places = max(min(places, STORED_MAX) // len(rows_of), 1) * len(rows_of)
    reached = np.cumsum(weight[ascending]) / weight.sum()
    levels = np.arange(1, places + 1) / places
    found = np.minimum(np.searchsorted(reached, levels - _ROUNDING), len(residuals) - 1)
    stored = tuple(round(float(value), 9) for value in residuals[ascending[found]])
    return ConformalBounds(residuals=stored, rows=len(rows_of), groups=len(rows_of))


def bound_offset(scores: ConformalBounds, bound: ConformalBounds | None, confidence: float) -> float:
    """What is added to a prediction, in units of the spread, so that this share of measured values stays below.

    Args:
        scores: Residuals in units of the spread.
        bound: The same where networks are counted instead of groups; None = they are not.
        confidence: Share, above 0 and below 1.
    """
    return scores.upper_offset(confidence) if bound is None else RELATIVES_FACTOR * bound.upper_offset(confidence)


@lru_cache(maxsize=1_024)
def few_groups_factor(groups: int, confidence: float) -> float:
    """Factor for half the width of a central interval.

    Args:
        groups: How many were held out one after the other, above 0.
        confidence: Nominal coverage, above 0 and below 1.

    Returns:
        Above 1, and near 1 for many groups.
    """
    known = max(groups, _GROUPS_MIN)
    tail = (1.0 + confidence) / 2.0
    return float(stdtrit(known - 1, tail) / ndtri(tail)) * math.sqrt(1.0 + 1.0 / known)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartBounds:
    """What held-out rows taught of errors, of which whole parts were held out together.

    An interval is at least as wide as the worst of the parts needed.

    Attributes:
        scores: Residuals divided by their spread.
        parts: The same of each part that was held out together.
    """

    scores: ConformalBounds
    parts: Sequence[ConformalBounds]

    def half_width(self, spread: FloatArray, confidence: float) -> FloatArray:
        """Half the width of the central interval of rows of some spread, shape (rows,)."""
        of_all = self.scores.half_width(confidence) * few_groups_factor(self.scores.groups, confidence)
        return spread * max(of_all, *(part.half_width(confidence) for part in self.parts), 0.0)

    def upper_offset(self, spread: FloatArray, confidence: float) -> FloatArray:
        """What is added to predictions of some spread so that this share of measured values stays below."""
        return spread * self.scores.upper_offset(confidence)


def calibrate_parts(scores: FloatArray, part_rows: Sequence[int], groups: int) -> PartBounds:
    """Stores residuals of rows that were held out.

    Args:
        scores: Residuals divided by the spread of their rows, one part after the other, shape (rows,), at least one.
        part_rows: How many rows each part that was held out together has, each above 0.
        groups: Number of groups among all of them.
    """
    ends = np.cumsum(part_rows)
    return PartBounds(
        scores=calibrate(scores, groups),
        parts=[calibrate(scores[end - rows : end], 1) for end, rows in zip(ends, part_rows, strict=True)],
    )
