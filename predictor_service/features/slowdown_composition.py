"""Slowdowns with several co-located jobs from those with each of them. The same function judges, trains and serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]


def _add(total: FloatArray, rows: IndexArray, slowdowns: FloatArray) -> FloatArray:
    np.add.at(total, rows, slowdowns)
    return total


def _multiply(total: FloatArray, rows: IndexArray, slowdowns: FloatArray) -> FloatArray:
    times = 1.0 + total
    np.multiply.at(times, rows, 1.0 + slowdowns)
    return times - 1.0


def _take_worst(total: FloatArray, rows: IndexArray, slowdowns: FloatArray) -> FloatArray:
    worst = np.full(len(total), -np.inf)
    np.maximum.at(worst, rows, slowdowns)
    return np.where(np.isfinite(worst), worst, total)


COMPOSITIONS: Final[Mapping[str, Callable[[FloatArray, IndexArray, FloatArray], FloatArray]]] = {
    "sum": _add,
    "product": _multiply,
    "worst": _take_worst,
}
"""Ways to compose: sum of slowdowns, product of shared times, the worst co-located job alone."""
DEFAULT_COMPOSITION: Final = "sum"


def compose_slowdowns(
    slowdown_ratio: FloatArray, row_of_pair: IndexArray, rows: int, how: str = DEFAULT_COMPOSITION
) -> FloatArray:
    """Composes pairwise slowdowns.

    Args:
        slowdown_ratio: Of each victim with one co-located job, shape (pairs,).
        row_of_pair: Which victim each of them belongs to, shape (pairs,).
        rows: Number of victims.
        how: One of `COMPOSITIONS`.

    Returns:
        Slowdown ratios, shape (rows,); 0 for a victim without co-located jobs.
    """
    return COMPOSITIONS[how](np.zeros(rows), row_of_pair, slowdown_ratio)
