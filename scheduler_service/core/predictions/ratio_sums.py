"""Sums of ratios as people write them down: 0.2 + 0.1 + 0.9 is 1.2, whatever binary fractions make of it."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

ROUNDING_DIGITS = 9
"""Of a sum; far finer than anything that is measured or predicted."""


def rounded_sum(ratios: Iterable[float]) -> float:
    """Return the sum of ratios, the same for every order of them, free of what binary fractions add or lose.

    Limits and bends that such a sum may reach are to be compared with it by `exceeds`.
    """
    return round(fsum(ratios), ROUNDING_DIGITS)


def exceeds(ratio: float, limit: float) -> bool:
    """Say whether a rounded sum lies above a limit, which may itself be the result of a sum."""
    return ratio > round(limit, ROUNDING_DIGITS)
