"""AIP as published: four regressors with their library's settings, the smallest mean absolute error is chosen.

The paper names linear regression, support vector regression, decision tree regression and k nearest neighbours, system
configurations as inputs, and the error; it gives neither settings nor folds. Here the inputs are the columns as the set
publishes them with what was measured of the jobs alone, unscaled, the target is the slowdown itself, settings are the
library's own, and the error to choose by is that on folds inside the training rows, of the kind that will be unseen.

Source: OJPP paper, section 4.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from predictor_service.learning.learning_task import CandidateResult, FloatArray, Forecast, LearningTask
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.raw_columns import RawColumns, learn_columns
from predictor_service.table_methods.slowdown_folds import inner_folds

_NEAREST: Final = 5
"""The library's own number; fewer rows than that are all of them."""

REGRESSORS: Final[Mapping[str, Callable[[int, int], Any]]] = {
    "linear_regression": lambda seed, rows: LinearRegression(),
    "support_vector_regression": lambda seed, rows: SVR(),
    "decision_tree": lambda seed, rows: DecisionTreeRegressor(random_state=seed),
    "nearest_neighbours": lambda seed, rows: KNeighborsRegressor(n_neighbors=min(_NEAREST, rows)),
}
"""From a seed and the number of training rows to an unfitted regressor, in the paper's order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedAdaptivePrediction:
    """What was learned; see `learning_task.FittedMethod`.

    Attributes:
        selected: Name of the winner.
        candidates: Scored table, best first.
        columns: How a learning task becomes a table.
        middle: Median of each column, standing in for what a row lacks.
        models: Every regressor, fitted on all rows.
        bounds: Residuals of the winner on held-out rows, in ln(1 + slowdown).
    """

    selected: str
    candidates: Sequence[CandidateResult]
    columns: RawColumns
    middle: FloatArray
    models: Mapping[str, Any]
    bounds: ConformalBounds

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row with an interval; AIP has no notion of a domain. See `learning_task.FittedMethod`."""
        value = self.predict_each(learning_task)[self.selected]
        learned, half_width = SLOWDOWN.compress(value), self.bounds.half_width(0.9)
        return Forecast(
            value=value,
            lower_90=SLOWDOWN.expand(learned - half_width),
            upper_90=SLOWDOWN.expand(learned + half_width),
            upper_99=SLOWDOWN.expand(learned + self.bounds.upper_offset(0.99)),
            in_domain=np.ones(len(learning_task), dtype=bool),
        )

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """Predictions of every regressor by name."""
        table = _fill(self.columns.table(learning_task), self.middle)
        return {name: np.asarray(model.predict(table), dtype=np.float64) for name, model in self.models.items()}


@dataclass(frozen=True, slots=True)
class AdaptivePrediction:
    """See the module.

    Attributes:
        level: What will be unseen, one of `learning_task.LEVELS`; inner folds hold out the same.
        name: For the report.
    """

    level: str
    name: str = "aip"

    def fit(self, learning_task: LearningTask, seed: int) -> FittedAdaptivePrediction:
        """Learns from all rows of a learning task; see `learning_task.Method`."""
        columns = learn_columns(learning_task, self.level, with_graph=False)
        raw = columns.table(learning_task)
        known = [column[np.isfinite(column)] for column in raw.T]
        middle = np.array([np.median(column) if len(column) else 0.0 for column in known])
        table, measured = _fill(raw, middle), learning_task.measured
        level, folds = inner_folds(learning_task, self.level, 0, seed)
        held_out: dict[str, list[FloatArray]] = {name: [] for name in REGRESSORS}
        for fold in folds:
            for name, build in REGRESSORS.items():
                model = build(seed, len(fold.train)).fit(table[fold.train], measured[fold.train])
                held_out[name].append(np.asarray(model.predict(table[fold.test]), dtype=np.float64))
        tested = measured[np.concatenate([fold.test for fold in folds])] if folds else measured[:0]
        results = [
            CandidateResult(
                name=name, inner_mae=float(np.mean(np.abs(np.concatenate(parts) - tested))) if parts else 0.0
            )
            for name, parts in held_out.items()
        ]
        results.sort(key=lambda result: result.inner_mae)
        winner = held_out[results[0].name]
        residuals = SLOWDOWN.compress(tested) - SLOWDOWN.compress(np.concatenate(winner or [tested]))
        return FittedAdaptivePrediction(
            selected=results[0].name,
            candidates=tuple(results),
            columns=columns,
            middle=middle,
            models={name: build(seed, len(measured)).fit(table, measured) for name, build in REGRESSORS.items()},
            bounds=calibrate(
                residuals if len(residuals) else SLOWDOWN.compress(measured),
                len(frozenset[str]().union(*learning_task.groups(level))),
            ),
        )


def _fill(table: FloatArray, middle: FloatArray) -> FloatArray:
    """Without any column one of zeros stands in: the regressors want at least one."""
    return np.where(np.isfinite(table), table, middle) if table.shape[1] else np.zeros((len(table), 1))
