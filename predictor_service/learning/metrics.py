"""What is reported of predictions.

Every metric is a function of means over rows, so that a resampling of groups is a matrix product.

    mae, rmse, bias              in the target's unit; bias is predicted minus measured
    mape_ratio                   mean |predicted - measured| / measured; for slowdowns of the shared time, 1 + slowdown
    rmsle                        root mean square of ln(1 + predicted) - ln(1 + measured); utilizations in per cent
    under_prediction_ratio       share of rows predicted below what was measured
    coverage_90_ratio, _99_      share of rows inside the 90 % interval; below the 99 % bound
    interval_90_width_mean       in the target's unit
    upper_99_over_actual_mean    for slowdowns of the shared time

Source: Horus paper, section 4.1.1 (RMSLE of GPU utilization; it does not state whether of ratios or of per cent, and
per cent is the harsher reading).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, Forecast
from predictor_service.selection.targets import SLOWDOWN, Target

POINT_METRICS: Final = ("mae", "rmse", "mape_ratio", "rmsle", "bias", "under_prediction_ratio")
_ROOTS: Final = frozenset({"rmse", "rmsle"})


@dataclass(frozen=True, slots=True, eq=False)
class RowErrors:
    """What each row contributes.

    Attributes:
        names: Metrics, one per column.
        values: Shape (rows, metrics); NaN where a row has no value of a metric.
    """

    names: tuple[str, ...]
    values: FloatArray

    def summarize(self, weights: FloatArray | None = None) -> FloatArray:
        """Returns every metric for every weighting of the rows.

        Args:
            weights: Shape (weightings, rows), at least 0; None = each row once.

        Returns:
            Shape (weightings, metrics); NaN where no row counts.
        """
        if weights is None:
            weights = np.ones((1, len(self.values)))
        known = np.isfinite(self.values)
        total = weights @ np.where(known, self.values, 0.0)
        count = weights @ known.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = total / count
            for place, name in enumerate(self.names):
                if name in _ROOTS:
                    means[:, place] = np.sqrt(means[:, place])
        return np.asarray(means)

    def as_mapping(self) -> dict[str, float | None]:
        """Every metric over all rows by name; None where no row has a value."""
        return {
            name: float(value) if np.isfinite(value) else None
            for name, value in zip(self.names, self.summarize()[0], strict=True)
        }


def measure_points(target: Target, predicted: FloatArray, measured: FloatArray) -> RowErrors:
    """Errors of predictions without intervals.

    Args:
        target: What is predicted.
        predicted: In the target's unit, shape (rows,).
        measured: Same.
    """
    return RowErrors(POINT_METRICS, np.stack(list(_points(target, predicted, measured).values()), axis=1))


def measure_forecast(target: Target, forecast: Forecast, measured: FloatArray) -> RowErrors:
    """Errors of predictions with intervals; shapes as in `measure_points`."""
    columns = {
        **_points(target, forecast.value, measured),
        "coverage_90_ratio": ((forecast.lower_90 <= measured) & (measured <= forecast.upper_90)).astype(np.float64),
        "coverage_99_ratio": (measured <= forecast.upper_99).astype(np.float64),
        "interval_90_width_mean": forecast.upper_90 - forecast.lower_90,
        "upper_99_over_actual_mean": _divide(target.relative_to(forecast.upper_99), target.relative_to(measured)),
    }
    return RowErrors(tuple(columns), np.stack(list(columns.values()), axis=1))


def _points(target: Target, predicted: FloatArray, measured: FloatArray) -> Mapping[str, FloatArray]:
    error = predicted - measured
    scale = 100.0 if target.scale == "share" else 1.0
    # A slowdown may be below 0, never at or below -1.
    logs = [
        np.log1p(scale * np.maximum(values, -0.999 if target is SLOWDOWN else 0.0)) for values in (predicted, measured)
    ]
    return {
        "mae": np.abs(error),
        "rmse": error**2,
        "mape_ratio": _divide(np.abs(error), target.relative_to(measured)),
        "rmsle": (logs[0] - logs[1]) ** 2,
        "bias": error,
        "under_prediction_ratio": (error < 0).astype(np.float64),
    }


def _divide(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0))
