"""A Gaussian process over ordered pairs: one model for seen pairs, unseen jobs, and jobs seen in a few pairs.

Learned is ln(slowdown_ratio + shift). With a shift of 1 it is the logarithm of the shared time; with a small one
nearly the logarithm of the odds of not running, in which a victim's sensitivity and an aggressor's effect add up where
jobs take turns (s = w_other / w_victim). A victim that leaves the device idle for part of its step does not notice
waits that are shorter: its shift may be that part, so that what is learned is the whole wait. A measured time is off by
the same share whatever its size, so the noise of a row is that share, seen through the logarithm.

The parameters maximise the likelihood with a weak prior. Rows that are left out, a whole group at a time, are predicted
in closed form from the same inverse matrix; the few parameters still know those rows.

The work grows with the third power of the rows, so a process alone among all candidates sees at most `ROWS_MAX` of
them, drawn evenly by seed.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.23-2.26, 5.8, 5.9; section
5.4.2 for leaving out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, IndexArray
from predictor_service.regressors.process_likelihood import ProcessLikelihood
from predictor_service.table_methods.slowdown_kernel import PairKernel, Part
from predictor_service.table_methods.slowdown_pairs import PairRows

ROWS_MAX: Final = 800
"""Rows that a process learns from; see the module."""
_GAP_MIN: Final = 0.01
_EXPONENT_MAX: Final = 5.0
_JITTER: Final = 1e-6
_CHUNK_ROWS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessForm:
    """What a process is made of.

    Attributes:
        parts: Of the kernel.
        columns: Names of the jobs' columns that it sees; None = all.
        shift: Above 0, at most 1; the least one where it is each victim's own; see the module.
        has_line: Whether a straight line is part of it.
        hides_waits: Whether a row's shift is the share of time in which its victim leaves the device idle.
    """

    parts: tuple[Part, ...]
    columns: tuple[str, ...] | None
    shift: float
    has_line: bool
    hides_waits: bool = False

    def shifts(self, rows: PairRows) -> FloatArray:
        """Shift of each row, shape (rows,)."""
        idle = 1.0 - rows.jobs.utilization_ratio[rows.victim]
        hidden = np.where(np.isfinite(idle), np.clip(idle, self.shift, 1.0), self.shift)
        return hidden if self.hides_waits else np.full(len(rows), self.shift)

    def encode(self, slowdown_ratio: FloatArray, shift: FloatArray) -> FloatArray:
        """Into the learned scale; all of shape (rows,)."""
        return np.asarray(np.log(np.maximum(slowdown_ratio + shift, _GAP_MIN)))

    def decode(self, values: FloatArray, shift: FloatArray) -> FloatArray:
        """Back to slowdown ratios; all of shape (rows,)."""
        return np.asarray(np.exp(np.minimum(values, _EXPONENT_MAX)) - shift)

    def relative_noise(self, slowdown_ratio: FloatArray, shift: FloatArray) -> FloatArray:
        """Variance of each row's noise against the median row's, shape (rows,)."""
        widening = (1.0 + slowdown_ratio) / np.maximum(slowdown_ratio + shift, _GAP_MIN)
        return np.asarray(np.maximum(widening, _GAP_MIN) ** 2 / max(float(np.median(widening)), _GAP_MIN) ** 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedProcess:
    """What was learned.

    Attributes:
        form: What it is made of.
        kernel: With the columns of the training jobs.
        parameters: Of the kernel.
        rows: Training rows.
        middle: Mean of the learned scale.
        residual: Training values less the mean, in the learned scale.
        noise: Variance of the median row's noise.
        inverse: Inverse of the training rows' covariance, shape (rows, rows).
    """

    form: ProcessForm
    kernel: PairKernel
    parameters: FloatArray
    rows: PairRows
    middle: float
    residual: FloatArray
    noise: float
    inverse: FloatArray

    def predict(self, rows: PairRows) -> FloatArray:
        """Slowdown ratios, shape (rows,)."""
        weights = self.inverse @ self.residual
        parts = [
            self.kernel.matrix(self.parameters, rows.subset(chunk), self.rows) @ weights for chunk in _chunks(len(rows))
        ]
        return self.form.decode(self.middle + np.concatenate(parts), self.form.shifts(rows)) if parts else np.zeros(0)

    def leave_out(self, places: IndexArray) -> FloatArray:
        """Slowdown ratios of some training rows as if none of them had been seen, shape (places,)."""
        weights = self.inverse @ self.residual
        lifted = np.linalg.solve(self.inverse[np.ix_(places, places)], weights[places])
        return self.form.decode(
            self.middle + self.residual[places] - lifted, self.form.shifts(self.rows.subset(places))
        )

    def without(self, places: IndexArray) -> FittedProcess:
        """The same process, its parameters too, without some of its training rows."""
        kept = np.setdiff1d(np.arange(len(self.rows)), places)
        across = self.inverse[np.ix_(kept, places)]
        lifted = across @ np.linalg.solve(self.inverse[np.ix_(places, places)], across.T)
        return dataclasses.replace(
            self,
            rows=self.rows.subset(kept),
            residual=self.residual[kept],
            inverse=self.inverse[np.ix_(kept, kept)] - lifted,
        )

    def spread(self, rows: PairRows) -> FloatArray:
        """Standard deviation of what is measured about what is predicted, in the learned scale, shape (rows,)."""
        parts = [self._variance(rows.subset(chunk)) for chunk in _chunks(len(rows))]
        return np.asarray(np.sqrt(np.concatenate(parts))) if parts else np.zeros(0)

    def leave_out_spread(self, places: IndexArray) -> FloatArray:
        """The same of some training rows as if none of them had been seen, shape (places,)."""
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(self.inverse[np.ix_(places, places)]))))

    def _variance(self, rows: PairRows) -> FloatArray:
        alike = self.kernel.matrix(self.parameters, rows, self.rows)
        known = np.einsum("ij,ij->i", alike @ self.inverse, alike)
        return np.asarray(np.maximum(self.kernel.variance(self.parameters, rows) - known, 0.0) + self.noise)


def _chunks(count: int) -> list[IndexArray]:
    return [np.arange(start, min(start + _CHUNK_ROWS, count)) for start in range(0, count, _CHUNK_ROWS)]


def draw_rows(count: int, seed: int) -> IndexArray:
    """Draws the rows that a process learns from out of so many, ascending; all where they are few enough."""
    if count <= ROWS_MAX:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, ROWS_MAX, replace=False))


def fit_process(form: ProcessForm, rows: PairRows, slowdown_ratio: FloatArray) -> FittedProcess:
    """Learns from measured pairs.

    Args:
        form: What the process is made of.
        rows: Which jobs were co-located, at least 2 and at most `ROWS_MAX`.
        slowdown_ratio: Measured, shape (rows,).
    """
    kernel = PairKernel(parts=form.parts, columns=rows.jobs.columns.shape[1], has_line=form.has_line)
    shift = form.shifts(rows)
    noise_shape = form.relative_noise(slowdown_ratio, shift)
    encoded = form.encode(slowdown_ratio, shift)
    middle = float(np.average(encoded, weights=1.0 / noise_shape))
    residual = encoded - middle
    likelihood = ProcessLikelihood(
        kernel=_KernelOfRows(kernel, rows), residual=residual, noise_shape=noise_shape, jitter=_JITTER
    )
    point = likelihood.search(*_start(kernel, residual))
    return FittedProcess(
        form=form,
        kernel=kernel,
        parameters=point[:-1],
        rows=rows,
        middle=middle,
        residual=residual,
        noise=float(np.exp(point[-1]) + _JITTER),
        inverse=np.asarray(np.linalg.inv(likelihood.covariance(point)), dtype=np.float64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _KernelOfRows:
    """The kernel between the training rows; see `process_likelihood.Kernel`."""

    kernel: PairKernel
    rows: PairRows

    def matrix(self, parameters: FloatArray) -> FloatArray:
        return self.kernel.matrix(parameters, self.rows, self.rows)

    def gradient(self, parameters: FloatArray, sensitivity: FloatArray) -> FloatArray:
        return self.kernel.gradient(parameters, self.rows, sensitivity)


def _start(kernel: PairKernel, residual: FloatArray) -> tuple[FloatArray, list[tuple[float, float]]]:
    """Where the search starts, and the bounds of the parameters."""
    size = float(np.log(residual.var() + _JITTER))
    lengths, parts, line = 2 * kernel.columns, len(kernel.parts), int(kernel.has_line)
    values = [np.full(lengths, 0.5), np.full(parts, size - 1.5), np.full(line, size - 3.0), np.array([size - 4.5])]
    bounds = [(-2.5, 3.5)] * lengths + [(size - 9.0, size + 4.0)] * (parts + line) + [(size - 9.0, size + 1.0)]
    return np.concatenate(values), bounds
