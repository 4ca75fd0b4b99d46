"""Gradient boosting of trees (xgboost) behind the interface."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import xgboost
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.onnx_names import serialize_with_canonical_names

ONNX_OPSET = 15


class BoostedTrees:
    """Boosted regression trees; the one place that knows the library.

    Args:
        seed: Of row and column sampling.
        parameters: The library's own, see `xgboost.XGBRegressor`; its defaults stand for those that are not given.
    """

    def __init__(self, *, seed: int, **parameters: Any) -> None:  # noqa: ANN401 (whatever the library takes)
        self._model = xgboost.XGBRegressor(random_state=seed, n_jobs=1, **parameters)
        self._columns = 0

    def fit(self, features: FeatureArray | FloatArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`."""
        self._columns = features.shape[1]
        self._model.fit(features, target)
        return self

    def predict(self, features: FeatureArray | FloatArray) -> FloatArray:
        """Returns one value per row; see `Regressor`."""
        return np.asarray(self._model.predict(features), dtype=np.float64)

    def to_onnx(self) -> bytes:
        """Returns the fitted trees as an ONNX file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the converter warns of its own dependencies
            model = convert_xgboost(
                self._model,
                initial_types=[("features", FloatTensorType([None, self._columns]))],
                target_opset=ONNX_OPSET,
            )
        return serialize_with_canonical_names(model)
