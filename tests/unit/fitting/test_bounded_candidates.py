"""No candidate's work grows with a power of the rows without an end: evaluations accept 20,000 of them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from predictor_service.regressors import candidates
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.scikit import ScikitRegressor

COLUMNS = np.arange(200, dtype=np.float32).reshape(100, 2)


class Recording(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Keeps the targets that it was given."""

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        self.seen_ = target
        return self


def seen(rows_max: int | None, seed: int) -> Any:
    estimator = Recording()
    ScikitRegressor(estimator, rows_max=rows_max, seed=seed).fit(COLUMNS, np.arange(100.0))
    return estimator.seen_.tolist()


def test_of_more_rows_than_allowed_so_many_are_drawn_by_the_seed_in_their_order() -> None:
    assert len(seen(30, 1)) == 30
    assert seen(30, 1) == sorted(seen(30, 1)) == seen(30, 1)
    assert seen(30, 1) != seen(30, 2)


@pytest.mark.parametrize("rows_max", [None, 100])
def test_as_many_rows_as_allowed_are_all_learned_from(rows_max: int | None) -> None:
    assert seen(rows_max, 1) == list(range(100))


def test_support_vectors_learn_from_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SUPPORT_ROWS_MAX", 40)
    noise = np.random.default_rng(0).normal(size=100)
    few = candidates.CANDIDATES["support_vector_regression"](0).fit(COLUMNS, noise).to_onnx()
    monkeypatch.setattr(candidates, "SUPPORT_ROWS_MAX", 100)
    assert len(candidates.CANDIDATES["support_vector_regression"](0).fit(COLUMNS, noise).to_onnx()) > len(few)
