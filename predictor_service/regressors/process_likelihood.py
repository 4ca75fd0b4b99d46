"""The parameters of a Gaussian process over rows that make what was measured most likely.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.23, 5.8 and 5.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import minimize

from predictor_service.regressors.interface import FloatArray

_STEPS_MAX: Final = 15
"""With the prior more steps change no answer by more than a hundredth."""
_PRIOR: Final = 0.3
_IMPOSSIBLE: Final = 1e9


class Kernel(Protocol):
    """How alike the training rows are, by parameters that are logarithms."""

    def matrix(self, parameters: FloatArray) -> FloatArray:
        """Likeness of every two rows, a new array of shape (rows, rows)."""
        ...

    def gradient(self, parameters: FloatArray, sensitivity: FloatArray) -> FloatArray:
        """Derivative by each parameter of a function whose derivative by each cell of the matrix is given."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessLikelihood:
    """Of a kernel's parameters and, last, the logarithm of the noise's variance.

    Attributes:
        kernel: Of the training rows.
        residual: What is to be explained, shape (rows,).
        noise_shape: Variance of each row's noise relative to the others', shape (rows,).
        jitter: Least variance of the noise, above 0.
    """

    kernel: Kernel
    residual: FloatArray
    noise_shape: FloatArray
    jitter: float

    def search(self, start: FloatArray, bounds: Sequence[tuple[float, float]]) -> FloatArray:
        """The most likely parameters.

        Args:
            start: Where the search starts, which is also where the prior pulls to.
            bounds: Of each parameter.
        """
        found = minimize(
            self.negative,
            start,
            args=(start,),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _STEPS_MAX},
        )
        return np.asarray(found.x, dtype=np.float64)

    def covariance(self, point: FloatArray) -> FloatArray:
        """Of the rows with their noise, shape (rows, rows)."""
        matrix = self.kernel.matrix(point[:-1])
        matrix[np.diag_indices(len(matrix))] += (np.exp(point[-1]) + self.jitter) * self.noise_shape
        return matrix

    def negative(self, point: FloatArray, prior: FloatArray) -> tuple[float, FloatArray]:
        """Negative logarithm of likelihood times prior, and its gradient."""
        root, failed = lapack.dpotrf(self.covariance(point), lower=1, overwrite_a=1)
        if failed:  # a corner of the search where the matrix has no positive root: turn back
            return _IMPOSSIBLE, np.zeros_like(point)
        lower = np.tril(lapack.dpotri(root, lower=1)[0])
        inverse = lower + np.tril(lower, -1).T
        weights = inverse @ self.residual
        value = 0.5 * self.residual @ weights + np.log(np.diag(root)).sum()
        sensitivity = 0.5 * (inverse - np.outer(weights, weights))
        by_noise = np.exp(point[-1]) * float(np.diag(sensitivity) @ self.noise_shape)
        gradient = np.append(self.kernel.gradient(point[:-1], sensitivity), by_noise)
        away = point - prior
        return float(value + _PRIOR * (away @ away)), gradient + 2.0 * _PRIOR * away
