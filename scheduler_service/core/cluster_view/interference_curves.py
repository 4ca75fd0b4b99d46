"""Horus' curve of a device type, fitted to the pairs that were measured on it: slowdown over summed utilization.

The curve is a u up to 100 % and b u^2 above. Both are fitted by least squares and pulled towards the ranges of the
paper as one more pair would, so that few pairs move them little. Another version takes the place of the one before
when either has moved by a twentieth, a minute after it at the earliest.

Source:
    Yeung et al., "Horus", section 3.2 (ranges of the slowdown), Eq. 9 (F- below and F+ above 100 %, per device).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DEFAULT_RATIO: Final = 0.5
"""Of both parts: 1.5 times as long at 100 %, 3 times at 200 %."""
PAIRS_MIN: Final = 5
"""Measured pairs before a curve is fitted."""
INTERVAL_MS: Final = 60_000
MOVED_RATIO: Final = 0.05
_PRIOR_WEIGHT: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceCurve:
    """A fitted curve.

    Attributes:
        linear_ratio: Slowdown for every 100 % of summed utilization, up to 100 %.
        quadratic_ratio: Slowdown for the square of the summed utilization (1 = 100 %), above 100 %.
        pairs: Measured pairs that it is fitted to.
        version: Counts the curves of the device type, from 1.
        fitted_at_ms: When it was fitted.
    """

    linear_ratio: float
    quadratic_ratio: float
    pairs: int
    version: int = 1
    fitted_at_ms: int = 0


def fit_curve(
    points: Iterable[tuple[float, float]], before: InterferenceCurve | None, *, at_ms: int
) -> InterferenceCurve | None:
    """Return the curve through (summed utilization, slowdown), `before` where it has not moved, None for too few.

    Args:
        points: Utilization 1 = 100 %; slowdown 0.2 = 20 % longer, below 0 counts as 0.
        before: The present curve.
        at_ms: This instant.
    """
    products, squares, count = [0.0, 0.0], [0.0, 0.0], 0
    for utilization_ratio, slowdown_ratio in points:
        is_above = utilization_ratio > 1.0
        base = utilization_ratio**2 if is_above else utilization_ratio
        products[is_above] += base * max(slowdown_ratio, 0.0)
        squares[is_above] += base**2
        count += 1
    if count < PAIRS_MIN:
        return before
    linear_ratio, quadratic_ratio = (
        (product + _PRIOR_WEIGHT * DEFAULT_RATIO) / (square + _PRIOR_WEIGHT)
        for product, square in zip(products, squares, strict=True)
    )
    if before is not None and not (
        _has_moved(linear_ratio, before.linear_ratio) or _has_moved(quadratic_ratio, before.quadratic_ratio)
    ):
        return before
    return InterferenceCurve(
        linear_ratio=linear_ratio,
        quadratic_ratio=quadratic_ratio,
        pairs=count,
        version=before.version + 1 if before is not None else 1,
        fitted_at_ms=at_ms,
    )


def _has_moved(now: float, before: float) -> bool:
    return abs(now - before) > MOVED_RATIO * before
