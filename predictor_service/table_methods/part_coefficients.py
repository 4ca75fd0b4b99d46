"""How much of each part that the analytical model counts is really reached or held: coefficients of at least 0.

Of memory they minimise relative errors: a sum of parts that are all held has no outliers that are not faults. Times
have: a few jobs wait for hosts, loaders or other units of a step, which no part covers, and relative errors hardly
count predictions that are too short. Times are fitted as logarithms, therefore, far rows pull as much as near ones, and
every coefficient is drawn to 1, the device's peaks, unless the rows support another. Where few jobs were measured, an
unseen device or kind of network is answered by the peaks, not by the accidents of a fit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import minimize, nnls

from predictor_service.learning.learning_task import FloatArray

_ROWS_PER_COEFFICIENT: Final = 4
_USUAL_ERROR: Final = 0.3
"""Of a time, as a logarithm; beyond it rows pull by their side, not by their distance."""
_LOG_RANGE: Final = 12.0


def fit_sums(parts: FloatArray, measured: FloatArray) -> FloatArray:
    """Coefficients by relative error; all 1 where there are too few rows to fit.

    Args:
        parts: Shape (rows, parts), finite, at least 0.
        measured: Above 0, shape (rows,).
    """
    if len(parts) < _ROWS_PER_COEFFICIENT * parts.shape[1]:
        return np.ones(parts.shape[1])
    relative = parts / measured[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-12)
    coefficients, _ = nnls(relative / scale, np.ones(len(parts)))
    return np.asarray(coefficients / scale)


def fit_times(parts: FloatArray, measured: FloatArray) -> FloatArray:
    """Coefficients by logarithmic error, each drawn to 1; 1 where no row has the part.

    Args:
        parts: Shape (rows, parts), finite, at least 0, not all 0 in any row.
        measured: Above 0, shape (rows,).
    """
    wanted = np.log(measured)

    def cost(logs: FloatArray) -> tuple[float, FloatArray]:
        scaled = parts * np.exp(logs)
        total = scaled.sum(axis=1)
        errors = (np.log(total) - wanted) / _USUAL_ERROR
        size = np.sqrt(1.0 + errors * errors)
        slopes = (errors / size / _USUAL_ERROR / total) @ scaled
        return float((size - 1.0).sum() + 0.5 * (logs @ logs)), slopes + logs

    start = np.zeros(parts.shape[1])
    bounds = [(-_LOG_RANGE, _LOG_RANGE)] * len(start)
    return np.asarray(np.exp(minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds).x))
