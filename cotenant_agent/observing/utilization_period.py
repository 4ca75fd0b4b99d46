"""The period in which a job's utilization repeats itself: of a job that prints nothing the nearest thing to its steps.

Pure. By autocorrelation, with more doubts than hopes: a job whose utilization hardly moves, repeats too fast for the
samples, or repeats only in part of them has no period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

SAMPLES_MIN: Final = 160
PERIOD_SAMPLES_MIN: Final = 8
"""Of a shorter one half of the samples would not show it, and it might be another one, seen too seldom."""
PERIODS_MIN: Final = 4
_SWING_MIN: Final = 0.1
"""Standard deviation as a share of the mean."""
_LIKENESS_MIN: Final = 0.5
_AS_GOOD: Final = 0.85
"""Multiples of a period are as good as it is: the first one that reaches this share of the best counts."""
_AGREEMENT: Final = 0.05


def find_period(busy_ratios: Sequence[float]) -> float | None:
    """Return the period in samples, which may be a fraction; None = there is none that can be trusted.

    Args:
        busy_ratios: How busy the job kept its device in equal stretches of time, without gaps.
    """
    period = _strongest(busy_ratios)
    if period is None or period < PERIOD_SAMPLES_MIN:
        return None
    # What is sampled too seldom shows another period when it is sampled still more seldom.
    halved = [(first + second) / 2 for first, second in zip(busy_ratios[::2], busy_ratios[1::2], strict=False)]
    middle = len(busy_ratios) // 2
    views = [(halved, 2.0), (busy_ratios[:middle], 1.0), (busy_ratios[middle:], 1.0)]
    found = [None if (one := _strongest(values)) is None else one * scale for values, scale in views]
    is_agreed = all(one is not None and abs(one - period) <= _AGREEMENT * period for one in found)
    return period if is_agreed else None


def _strongest(values: Sequence[float]) -> float | None:
    if len(values) < SAMPLES_MIN // 2:
        return None
    likeness = _autocorrelation(values, len(values) // PERIODS_MIN * 2)
    peaks = [lag for lag in _peaks(likeness) if likeness[lag] >= _LIKENESS_MIN]
    # Both a period and its double have to be seen: two similar stretches alone are chance.
    peaks = [lag for lag in peaks if lag <= len(values) // PERIODS_MIN]
    if not peaks:
        return None
    best = max(likeness[lag] for lag in peaks)
    first = next(lag for lag in peaks if likeness[lag] >= _AS_GOOD * best)
    return _refined(likeness, first)


def _autocorrelation(values: Sequence[float], lags: int) -> list[float]:
    """Return how alike the values are to themselves so many samples later, from 0 on; empty = they hardly move."""
    mean = math.fsum(values) / len(values)
    moved = [value - mean for value in values]
    variance = math.fsum(value * value for value in moved) / len(moved)
    if mean <= 0 or math.sqrt(variance) < _SWING_MIN * mean:
        return []
    return [
        math.fsum(first * second for first, second in zip(moved, moved[lag:], strict=False))
        / (len(moved) - lag)
        / variance
        for lag in range(min(lags, len(moved) - 1) + 1)
    ]


def _peaks(likeness: Sequence[float]) -> list[int]:
    return [lag for lag in range(2, len(likeness) - 1) if likeness[lag - 1] <= likeness[lag] > likeness[lag + 1]]


def _refined(likeness: Sequence[float], first: int) -> float:
    """Return the period by the farthest of its multiples that are seen: the error of one sample is shared by all."""
    period = _summit(likeness, first)
    for count in range(2, len(likeness)):
        near = round(period * count)
        if near + 2 >= len(likeness):
            break
        lag = max(range(near - 1, near + 2), key=likeness.__getitem__)
        if likeness[lag] < _LIKENESS_MIN:
            break
        period = _summit(likeness, lag) / count
    return period


def _summit(likeness: Sequence[float], lag: int) -> float:
    """Return where the parabola through a peak and the values beside it is highest."""
    before, at, after = likeness[lag - 1 : lag + 2]
    bend = before - 2 * at + after
    return lag + (0.5 * (before - after) / bend if bend < 0 else 0.0)
