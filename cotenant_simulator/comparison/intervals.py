"""Intervals of means over seeds (Student's t), and paired comparisons: both policies of a pair met the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds.

    Attributes:
        mean: Of the values.
        low: Lower end of its 95 % interval; None = one value has no interval.
        high: Upper end.
        count: Values.
    """

    mean: float
    low: float | None
    high: float | None
    count: int


def interval_of(values: Sequence[float]) -> Interval | None:
    """Return the mean of independent values with its 95 % interval; None = there is no value."""
    if not values:
        return None
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean=mean, low=None, high=None, count=1)
    half = _quantile(len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half, count=len(values))


def paired_difference(values: Sequence[float | None], others: Sequence[float | None]) -> Interval | None:
    """Return how much larger the values are than those of the same seeds of another policy."""
    return interval_of([value - other for value, other in _pairs(values, others)])


def paired_ratio(values: Sequence[float | None], others: Sequence[float | None]) -> Interval | None:
    """Return how many times larger the values are; None = no seed, or one at which the other policy has 0."""
    pairs = _pairs(values, others)
    return interval_of([value / other for value, other in pairs]) if all(other > 0 for _, other in pairs) else None


def _pairs(values: Sequence[float | None], others: Sequence[float | None]) -> list[tuple[float, float]]:
    both = zip(values, others, strict=True)
    return [(value, other) for value, other in both if value is not None and other is not None]


def _quantile(degrees_of_freedom: int) -> float:
    # Imported here: one seed needs no intervals, and starts in a fraction of a second.
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))
