"""What every candidate regressor must do to compete."""

import numpy as np
import pytest

from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.regressors.candidates import CANDIDATES

RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(60, 5)).astype(np.float32)
TARGET = FEATURES[:, 0] * 2.0 + np.abs(FEATURES[:, 1]) + RANDOM.normal(scale=0.05, size=60)

every_candidate = pytest.mark.parametrize("name", list(CANDIDATES))


@every_candidate
def test_fit_returns_the_regressor_itself(name: str) -> None:
    regressor = CANDIDATES[name](0)
    assert regressor.fit(FEATURES, TARGET) is regressor


@every_candidate
def test_predictions_are_finite_one_per_row(name: str) -> None:
    values = CANDIDATES[name](0).fit(FEATURES, TARGET).predict(FEATURES[:7])
    assert values.shape == (7,)
    assert np.isfinite(values).all()


@every_candidate
def test_equal_seeds_give_equal_models_to_the_byte(name: str) -> None:
    first, second = (CANDIDATES[name](5).fit(FEATURES, TARGET).to_onnx() for _ in range(2))
    assert first == second


@every_candidate
def test_the_converted_model_agrees_on_rows_without_ties(name: str) -> None:
    regressor = CANDIDATES[name](0).fit(FEATURES, TARGET)
    fresh = RANDOM.normal(size=(20, 5)).astype(np.float32)
    expected = regressor.predict(fresh)
    found = OnnxModel(regressor.to_onnx()).predict(fresh)
    assert np.max(np.abs(found - expected) / np.maximum(1.0, np.abs(expected))) <= 1e-4


@pytest.mark.parametrize("name", [name for name in CANDIDATES if name != "constant_correction"])
def test_a_candidate_learns_more_than_the_mean(name: str) -> None:
    values = CANDIDATES[name](0).fit(FEATURES, TARGET).predict(FEATURES)
    assert np.abs(values - TARGET).mean() < 0.8 * np.abs(TARGET - TARGET.mean()).mean()
