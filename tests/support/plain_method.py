"""A method without knowledge of the target: a few regressors on all columns, the best over inner folds is refitted.

It learns any target of any set, so it stands in wherever a target has no method of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xgboost
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from predictor_service.learning.learning_task import CandidateResult, FloatArray, Forecast, LearningTask
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.domain import TrainingDomain, learn_domain
from predictor_service.selection.folds import Fold, grouped_folds
from predictor_service.table_methods.raw_columns import RawColumns, learn_columns

ROWS_MIN: Final = 12
"""Fewer rows carry no choice: the mean answers."""
_LEVELS_FINER: Final = ("family", "architecture", "job", "random_pair")


def _boosted(seed: int) -> Any:
    return xgboost.XGBRegressor(
        n_estimators=300, max_depth=4, learning_rate=0.06, subsample=0.8, colsample_bytree=0.7, min_child_weight=2,
        random_state=seed, n_jobs=1,
    )  # fmt: skip


def _trees(seed: int) -> Any:
    return ExtraTreesRegressor(n_estimators=120, min_samples_leaf=2, random_state=seed, n_jobs=1)


def _ridge(seed: int) -> Any:
    return make_pipeline(StandardScaler(), RidgeCV(alphas=(0.1, 1.0, 10.0, 100.0)))


def _neighbours(seed: int) -> Any:
    return make_pipeline(StandardScaler(), KNeighborsRegressor(n_neighbors=3, weights="distance"))


def _mean(seed: int) -> Any:
    return DummyRegressor()


CANDIDATES: Final[Mapping[str, Callable[[int], Any]]] = {
    "mean": _mean,
    "ridge": _ridge,
    "nearest_neighbours": _neighbours,
    "extra_trees": _trees,
    "boosted_trees": _boosted,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedPlainMethod:
    """What was learned; see `learning_task.FittedMethod`.

    Attributes:
        selected: Name of the winner.
        candidates: Scored table, best first.
        columns: How a learning task becomes a table.
        middle: Median of each column, standing in for what a row lacks.
        models: Every candidate, fitted on all rows.
        bounds: Residuals of the winner over inner folds, in the learned scale.
        domain: Region of the training rows.
    """

    selected: str
    candidates: Sequence[CandidateResult]
    columns: RawColumns
    middle: FloatArray
    models: Mapping[str, Any]
    bounds: ConformalBounds
    domain: TrainingDomain

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row with an interval; see `learning_task.FittedMethod`."""
        table = _fill(self.columns.table(learning_task), self.middle)
        raw = np.asarray(self.models[self.selected].predict(table), dtype=np.float64)
        half_width = self.bounds.half_width(0.9)
        return Forecast(
            value=learning_task.target.expand(raw),
            lower_90=learning_task.target.expand(raw - half_width),
            upper_90=learning_task.target.expand(raw + half_width),
            upper_99=learning_task.target.expand(raw + self.bounds.upper_offset(0.99)),
            in_domain=self.domain.contains(table.astype(np.float32)),
        )

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """Predictions of every candidate by name, for the scored table of an evaluation."""
        table = _fill(self.columns.table(learning_task), self.middle)
        return {
            name: learning_task.target.expand(np.asarray(model.predict(table), dtype=np.float64))
            for name, model in self.models.items()
        }


@dataclass(frozen=True, slots=True)
class PlainMethod:
    """See the module.

    Attributes:
        level: What will be unseen; inner folds hold out the same.
        name: For the report.
        candidate_names: Those of `CANDIDATES` that compete.
    """

    level: str
    name: str = "plain"
    candidate_names: tuple[str, ...] = tuple(CANDIDATES)

    def fit(self, learning_task: LearningTask, seed: int) -> FittedPlainMethod:
        """Learns from all rows of a learning task; see `learning_task.Method`."""
        columns = learn_columns(learning_task, self.level, with_graph=True)
        table = columns.table(learning_task)
        middle = _medians(table)
        table = _fill(table, middle)
        encoded = learning_task.target.compress(learning_task.measured)
        groups, folds = _inner_folds(learning_task, self.level)
        names = self.candidate_names if folds and columns.names else ("mean",)
        held_out = {name: _held_out(name, table, encoded, folds, seed) for name in names}
        rows = np.concatenate([fold.test for fold in folds]) if folds else np.arange(len(encoded))
        results = sorted(
            (
                CandidateResult(name=name, inner_mae=_inner_mae(learning_task, values, rows))
                for name, values in held_out.items()
            ),
            key=lambda result: result.inner_mae,
        )
        winner = results[0].name
        return FittedPlainMethod(
            selected=winner,
            candidates=tuple(results),
            columns=columns,
            middle=middle,
            models={name: CANDIDATES[name](seed).fit(table, encoded) for name in names},
            bounds=calibrate(encoded[rows] - held_out[winner], len(frozenset[str]().union(*groups))),
            domain=learn_domain(table.astype(np.float32), groups),
        )


def _inner_folds(learning_task: LearningTask, level: str) -> tuple[Sequence[frozenset[str]], list[Fold]]:
    """Folds inside the training rows at the level asked for, or at the coarsest finer one that has enough groups."""
    if len(learning_task) >= ROWS_MIN:
        start = _LEVELS_FINER.index(level) if level in _LEVELS_FINER else 0
        for finer in _LEVELS_FINER[start:]:
            groups = learning_task.groups(finer)
            folds = grouped_folds(groups)
            if folds:
                return groups, folds
    return learning_task.groups("job"), []


def _held_out(name: str, table: FloatArray, encoded: FloatArray, folds: Sequence[Fold], seed: int) -> FloatArray:
    if not folds:
        return np.full(len(encoded), encoded.mean())
    parts = []
    for fold in folds:
        model = CANDIDATES[name](seed).fit(table[fold.train], encoded[fold.train])
        parts.append(np.asarray(model.predict(table[fold.test]), dtype=np.float64))
    return np.concatenate(parts)


def _inner_mae(
    learning_task: LearningTask, encoded: FloatArray, rows: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> float:
    return float(np.mean(np.abs(learning_task.target.expand(encoded) - learning_task.measured[rows])))


def _fill(table: FloatArray, middle: FloatArray) -> FloatArray:
    """What is missing is taken as the median; sizes become logarithms, which keep their sign."""
    if not table.shape[1]:  # nothing varies: one column that says so keeps every model and the domain defined
        return np.zeros((len(table), 1))
    filled = np.where(np.isfinite(table), table, middle)
    return np.asarray(np.sign(filled) * np.log1p(np.abs(filled)))


def _medians(table: FloatArray) -> FloatArray:
    return np.array(
        [np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else 0.0 for column in table.T]
    )
