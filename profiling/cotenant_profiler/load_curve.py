"""Slowdown as a function of the summed utilization of the jobs on a device: a line up to 100 %, a parabola above.

Source: Horus paper, section 3 and Fig. 4 (linear up to full utilization, a quadratic polynomial above; R^2 of 0.88 and
0.84 on two devices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FULL_RATIO = 1.0
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve:
    """The two fitted pieces.

    Attributes:
        line: Coefficients below full load, highest power first; empty when fewer than three rows lie there.
        parabola: The same above.
        r_squared: Share of the variance of all rows that the pieces explain; None without two different slowdowns.
        rows_below: Rows at or below full load.
        rows_above: Rows above.
    """

    line: tuple[float, ...]
    parabola: tuple[float, ...]
    r_squared: float | None
    rows_below: int
    rows_above: int

    def values(self, load_ratio: FloatArray) -> FloatArray:
        """Return the slowdown at summed utilizations, NaN where no piece was fitted; shapes are equal."""
        slowdown = np.full(load_ratio.shape, np.nan)
        below = load_ratio <= FULL_RATIO
        for piece, where in ((self.line, below), (self.parabola, ~below)):
            if piece:
                slowdown[where] = np.polyval(piece, load_ratio[where])
        return slowdown


def fit_load_curve(load_ratios: Sequence[float], slowdown_ratios: Sequence[float]) -> LoadCurve:
    """Fit both pieces by least squares.

    Args:
        load_ratios: Summed utilization of the jobs of each row, 0 and more.
        slowdown_ratios: Slowdown of the victim of each row.
    """
    load, slowdown = np.asarray(load_ratios, dtype=np.float64), np.asarray(slowdown_ratios, dtype=np.float64)
    below = load <= FULL_RATIO
    curve = LoadCurve(
        line=_fit(load[below], slowdown[below], 1),
        parabola=_fit(load[~below], slowdown[~below], 2),
        r_squared=None,
        rows_below=int(below.sum()),
        rows_above=int((~below).sum()),
    )
    return LoadCurve(
        line=curve.line,
        parabola=curve.parabola,
        r_squared=_r_squared(slowdown, curve.values(load)),
        rows_below=curve.rows_below,
        rows_above=curve.rows_above,
    )


def _fit(load: FloatArray, slowdown: FloatArray, degree: int) -> tuple[float, ...]:
    if len(np.unique(load)) < degree + 2:
        return ()
    return tuple(float(value) for value in np.polynomial.Polynomial.fit(load, slowdown, degree).convert().coef[::-1])


def _r_squared(measured: FloatArray, fitted: FloatArray) -> float | None:
    known = ~np.isnan(fitted)
    spread = float(np.sum((measured[known] - measured[known].mean()) ** 2)) if known.any() else 0.0
    if spread <= 0:
        return None
    return 1 - float(np.sum((measured[known] - fitted[known]) ** 2)) / spread
