"""Least squares with coefficients that cannot be negative, exact for the few columns that performance models have."""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

COLUMNS_MAX: Final = 6


def fit_nonnegative(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Minimises ||columns @ x - target|| subject to x >= 0.

    The minimum is the unconstrained one of some subset of the columns, the others being 0: with six columns there are
    63 subsets, fewer than an active-set solver is lines long.

    Args:
        columns: Shape (rows, columns), at most `COLUMNS_MAX` columns.
        target: Shape (rows,).

    Returns:
        Coefficients, shape (columns,).
    """
    count = columns.shape[1]
    if count > COLUMNS_MAX:
        raise ValueError(f"{count} columns; at most {COLUMNS_MAX} are tried in all subsets")
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = columns / scale
    best, best_error = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for subset in combinations(range(count), size):
            chosen = scaled[:, subset]
            found = np.linalg.lstsq(chosen, target, rcond=None)[0]
            if (found < 0).any():
                continue
            residual = chosen @ found - target
            error = float(residual @ residual)
            if error < best_error:
                best, best_error = np.zeros(count), error
                best[list(subset)] = found
    return np.asarray(best / scale)
