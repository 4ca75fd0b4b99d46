"""Regressors of scikit-learn behind the interface."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.onnx_names import serialize_with_canonical_names

ONNX_OPSET = 17


class ScikitRegressor:
    """A scikit-learn estimator, behind standardised columns as a rule.

    Args:
        estimator: Unfitted; it carries its own parameters and seed.
        standardizes: Trees need no standard columns, and the file standardizes in 32 bits: a last digit that differs
            takes a row to the other side of a threshold.
        rows_max: Of more rows so many are drawn by seed, for estimators whose work grows with a power of the rows.
        seed: Of that draw.
    """

    def __init__(
        self,
        estimator: Any,  # noqa: ANN401 (the library has no types)
        *,
        standardizes: bool = True,
        rows_max: int | None = None,
        seed: int = 0,
    ) -> None:
        self._pipeline = make_pipeline(StandardScaler(), estimator) if standardizes else estimator
        self._rows_max = rows_max
        self._seed = seed
        self._columns = 0

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`."""
        self._columns = features.shape[1]
        if self._rows_max is not None and len(features) > self._rows_max:
            drawn = np.random.default_rng(self._seed).choice(len(features), self._rows_max, replace=False)
            kept = np.sort(drawn)
            features, target = features[kept], target[kept]
        self._pipeline.fit(features, target)
        return self

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row; see `Regressor`."""
        return np.asarray(self._pipeline.predict(features), dtype=np.float64)

    def to_onnx(self) -> bytes:
        """Returns the fitted pipeline as an ONNX file."""
        return convert_scikit(self._pipeline, self._columns)


def convert_scikit(fitted: Any, columns: int) -> bytes:  # noqa: ANN401 (the library has no types)
    """Returns a fitted estimator of scikit-learn as an ONNX file with input `features`.

    Args:
        fitted: A regressor or a pipeline that ends in one.
        columns: That it was fitted on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the converter warns of its own dependencies
        model = to_onnx(fitted, initial_types=[("features", FloatTensorType([None, columns]))], target_opset=ONNX_OPSET)
    return serialize_with_canonical_names(model)
