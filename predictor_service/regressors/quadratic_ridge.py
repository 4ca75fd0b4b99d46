"""Ridge regression with interactions: y = c + w s + s Q s over standardised columns s.

scikit-learn's converter turns every product of two columns into nodes of its own; the quadratic form is five nodes.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.onnx_names import serialize_with_canonical_names

ONNX_OPSET = 17
ONNX_IR_VERSION = 8


class QuadraticRidge:
    """A quadratic form of the columns with a penalty on its coefficients.

    Args:
        alpha: Strength of the penalty, above 0.
    """

    def __init__(self, *, alpha: float) -> None:
        self._scaler = StandardScaler()
        self._ridge = Ridge(alpha=alpha)
        self._linear: FloatArray = np.zeros(0)
        self._products: FloatArray = np.zeros((0, 0))

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`."""
        scaled = self._scaler.fit_transform(features.astype(np.float64))
        first, second = np.triu_indices(scaled.shape[1])
        self._ridge.fit(np.hstack([scaled, scaled[:, first] * scaled[:, second]]), target)
        coefficients = np.asarray(self._ridge.coef_)
        columns = scaled.shape[1]
        self._linear = coefficients[:columns]
        self._products = np.zeros((columns, columns))
        self._products[first, second] = coefficients[columns:]
        return self

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row; see `Regressor`."""
        scaled = self._scaler.transform(features.astype(np.float64))
        quadratic = ((scaled @ self._products) * scaled).sum(axis=1)
        return np.asarray(scaled @ self._linear + quadratic + self._ridge.intercept_, dtype=np.float64)

    def to_onnx(self) -> bytes:
        """Returns the quadratic form as an ONNX file."""
        # (s Q + w) * s summed over the columns is s Q s + w s.
        nodes = [
            helper.make_node("Sub", ["features", "mean"], ["centred"]),
            helper.make_node("Div", ["centred", "scale"], ["scaled"]),
            helper.make_node("Gemm", ["scaled", "products", "linear"], ["slope"]),
            helper.make_node("Mul", ["slope", "scaled"], ["terms"]),
            helper.make_node("ReduceSum", ["terms", "axes"], ["sum"], keepdims=1),
            helper.make_node("Add", ["sum", "intercept"], ["value"]),
        ]
        constants = {
            "mean": self._scaler.mean_,
            "scale": self._scaler.scale_,
            "products": self._products,
            "linear": self._linear,
            "intercept": np.array([self._ridge.intercept_]),
        }
        initializers = [numpy_helper.from_array(_single(value), name) for name, value in constants.items()]
        initializers.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "axes"))
        graph = helper.make_graph(
            nodes,
            "regressor",
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, len(self._linear)])],
            [helper.make_tensor_value_info("value", TensorProto.FLOAT, [None, 1])],
            initializer=initializers,
        )
        opset = [helper.make_opsetid("", ONNX_OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=ONNX_IR_VERSION)
        return serialize_with_canonical_names(model)


def _single(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)
