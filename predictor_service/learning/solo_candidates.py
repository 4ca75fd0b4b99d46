"""The regressors that compete for a target of a job alone, on top of physics.

Trees of both kinds come first in most sets; the ridge wins where rows are few, the constant where there is nothing to
learn, and trees on nothing but what the set publishes where so few architectures were measured that figures of their
graphs only name them. Untuned trees without any physics are one more candidate, see `untuned_trees`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import xgboost
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from predictor_service.learning.learning_task import FloatArray

CONSTANT: Final = "constant"
"""Physics times one factor."""
UNTUNED: Final = "untuned_trees"
"""Learns the target itself, not what physics leaves open."""
PUBLISHED: Final = "published_columns"
"""Sees the published columns alone."""
_USUAL_ERROR: Final = 0.05
"""In the learned scale; of larger errors steady trees follow the middle, not the mean, so that the few rows that are
far off do not pull their neighbours. Where larger errors are usual they hardly learn, and others answer."""


def _constant(seed: int) -> Any:  # noqa: ANN401 (the library has no types)
    return DummyRegressor(strategy="median")


def _ridge(seed: int) -> Any:  # noqa: ANN401 (as above)
    return make_pipeline(StandardScaler(), RidgeCV(alphas=(1.0, 10.0, 100.0, 1000.0)))


def _extra_trees(seed: int) -> Any:  # noqa: ANN401 (as above)
    return ExtraTreesRegressor(n_estimators=80, max_features=0.5, random_state=seed, n_jobs=1)


def _boosted_trees(seed: int, **loss: Any) -> Any:  # noqa: ANN401 (as above)
    return xgboost.XGBRegressor(
        n_estimators=600, max_depth=5, learning_rate=0.04, subsample=0.7, colsample_bytree=0.4, min_child_weight=2,
        random_state=seed, n_jobs=1, **loss,
    )  # fmt: skip


def _steady_trees(seed: int) -> Any:  # noqa: ANN401 (as above)
    return _boosted_trees(seed, objective="reg:pseudohubererror", huber_slope=_USUAL_ERROR)


def _published_columns(seed: int) -> Any:  # noqa: ANN401 (as above)
    return xgboost.XGBRegressor(n_estimators=150, random_state=seed, n_jobs=1)


CANDIDATES: Final[Mapping[str, Callable[[int], Any]]] = {
    CONSTANT: _constant,
    "ridge": _ridge,
    "extra_trees": _extra_trees,
    "boosted_trees": _boosted_trees,
    "steady_trees": _steady_trees,
    PUBLISHED: _published_columns,
}
"""Builders by name, from a seed to an unfitted estimator."""


def fit_candidates(
    table: FloatArray, encoded: FloatArray, seed: int, published: Sequence[int], names: Iterable[str] = CANDIDATES
) -> dict[str, Any]:
    """Fits candidates.

    Args:
        table: Training rows, shape (rows, columns).
        encoded: In the learned scale, shape (rows,).
        seed: Of every candidate.
        published: Places of the columns that the set publishes; without any, the candidate that needs them is left out.
        names: Those of `CANDIDATES` to fit.

    Returns:
        Fitted models by name.
    """
    return {
        name: CANDIDATES[name](seed).fit(_seen_by(name, table, published), encoded)
        for name in names
        if published or name != PUBLISHED
    }


def predict_each(
    models: Mapping[str, Any], table: FloatArray, published: Sequence[int], seen: FloatArray
) -> dict[str, FloatArray]:
    """Predictions of every candidate, none beyond what any training row asked for.

    Args:
        models: Fitted, by name.
        table: Shape (rows, columns).
        published: As for `fit_candidates`.
        seen: Training values in the learned scale.
    """
    values = {}
    for name, model in models.items():
        answered = np.asarray(model.predict(_seen_by(name, table, published)), dtype=np.float64)
        values[name] = np.clip(answered, seen.min(), seen.max())
    return values


def _seen_by(name: str, table: FloatArray, published: Sequence[int]) -> FloatArray:
    return table[:, list(published)] if name == PUBLISHED else table
