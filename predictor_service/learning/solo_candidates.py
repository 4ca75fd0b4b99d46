"""The regressors that compete for a target of a job alone, on top of physics.

Trees of both kinds and their mean come first in most sets; the ridge wins where rows are few, the constant where
there is nothing to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import xgboost
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from predictor_service.learning.problem import FloatArray

CONSTANT: Final = "constant"
"""Physics times one factor."""
BLEND: Final = "blend"
"""The mean of the members named in `BLENDED`."""
BLENDED: Final = ("extra_trees", "boosted_trees")


def _constant(seed: int) -> Any:  # noqa: ANN401 (the library has no types)
    return DummyRegressor(strategy="median")


def _ridge(seed: int) -> Any:  # noqa: ANN401 (as above)
    return make_pipeline(StandardScaler(), RidgeCV(alphas=(1.0, 10.0, 100.0, 1000.0)))


def _extra_trees(seed: int) -> Any:  # noqa: ANN401 (as above)
    return ExtraTreesRegressor(n_estimators=80, max_features=0.5, random_state=seed, n_jobs=1)


def _boosted_trees(seed: int) -> Any:  # noqa: ANN401 (as above)
    return xgboost.XGBRegressor(
        n_estimators=300, max_depth=5, learning_rate=0.05, subsample=0.7, colsample_bytree=0.4, min_child_weight=2,
        random_state=seed, n_jobs=1,
    )  # fmt: skip


CANDIDATES: Final[Mapping[str, Callable[[int], Any]]] = {
    CONSTANT: _constant,
    "ridge": _ridge,
    "extra_trees": _extra_trees,
    "boosted_trees": _boosted_trees,
}
"""Builders by name, from a seed to an unfitted estimator."""


def fit_candidates(table: FloatArray, encoded: FloatArray, seed: int) -> dict[str, Any]:
    """Fits every candidate.

    Args:
        table: Training rows, shape (rows, columns).
        encoded: In the learned scale, shape (rows,).
        seed: Of every candidate.

    Returns:
        Fitted models by name.
    """
    return {name: build(seed).fit(table, encoded) for name, build in CANDIDATES.items()}


def predict_each(models: Mapping[str, Any], table: FloatArray, seen: FloatArray) -> dict[str, FloatArray]:
    """Predictions of every candidate and of the blend, none beyond what any training row asked for.

    Args:
        models: Fitted, by name.
        table: Shape (rows, columns).
        seen: Training values in the learned scale.
    """
    values = {
        name: np.clip(np.asarray(model.predict(table), dtype=np.float64), seen.min(), seen.max())
        for name, model in models.items()
    }
    if all(name in values for name in BLENDED):
        values[BLEND] = np.mean([values[name] for name in BLENDED], axis=0)
    return values
