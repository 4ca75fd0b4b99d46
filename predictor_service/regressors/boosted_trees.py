"""Gradient boosting of trees (xgboost) behind the interface."""

from __future__ import annotations

import warnings
from typing import Self

import numpy as np
import xgboost
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.onnx_names import serialize_with_canonical_names

ONNX_OPSET = 15


class BoostedTrees:
    """Boosted regression trees with shrinkage.

    Args:
        seed: Of row and column sampling.
        trees: Rounds of boosting.
        depth: Deepest split.
        learning_rate: Shrinkage of each tree.
    """

    def __init__(self, *, seed: int, trees: int = 80, depth: int = 3, learning_rate: float = 0.1) -> None:
        self._model = xgboost.XGBRegressor(
            n_estimators=trees,
            max_depth=depth,
            learning_rate=learning_rate,
            subsample=0.9,
            colsample_bytree=0.8,
            min_child_weight=2,
            tree_method="exact",
            random_state=seed,
            n_jobs=1,
        )
        self._columns = 0

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`."""
        self._columns = features.shape[1]
        self._model.fit(features, target)
        return self

    def predict(self, features: FeatureArray) -> FloatArray:
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
