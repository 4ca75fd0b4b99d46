"""A Gaussian process over the columns of a row: a straight line, and a smooth bend where rows support it.

Far from every training row only the line is left. The mean of the process is a matrix product, so that it is served by
ONNX as the others are.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equation 2.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from sklearn.preprocessing import StandardScaler

from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.onnx_names import serialize_with_canonical_names
from predictor_service.regressors.process_likelihood import ProcessLikelihood

ONNX_OPSET: Final = 17
ONNX_IR_VERSION: Final = 8
ROWS_MAX: Final = 400
"""The work grows with the third power of the rows; more are thinned out by seed."""
_JITTER: Final = 1e-5
_CONSTANT: Final = 4.0


class GaussianProcess:
    """A squared exponential with one length per column, plus a line.

    Args:
        seed: Of the choice of rows where there are too many.
    """

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._scaler = StandardScaler()
        self._centres: FloatArray = np.zeros((0, 0))
        self._weights: FloatArray = np.zeros(0)
        self._slopes: FloatArray = np.zeros(0)
        self._stretch: FloatArray = np.zeros(0)
        self._constant = 0.0

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`."""
        scaled = self._scaler.fit_transform(features.astype(np.float64))
        if len(scaled) > ROWS_MAX:
            kept = np.sort(np.random.default_rng(self._seed).choice(len(scaled), ROWS_MAX, replace=False))
            scaled, target = scaled[kept], target[kept]
        middle = float(target.mean())
        residual = target - middle
        likelihood = ProcessLikelihood(
            kernel=_BendAndLine(scaled), residual=residual, noise_shape=np.ones(len(scaled)), jitter=_JITTER
        )
        parameters = likelihood.search(*_start(scaled.shape[1], residual))
        weights = np.linalg.solve(likelihood.covariance(parameters), residual)
        columns = scaled.shape[1]
        self._stretch = np.exp(-parameters[:columns])
        self._centres = scaled * self._stretch
        self._weights = np.exp(parameters[columns]) * weights
        self._slopes = np.exp(parameters[columns + 1]) * (scaled.T @ weights)
        self._constant = middle + _CONSTANT * float(weights.sum())
        return self

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row; see `Regressor`."""
        scaled = self._scaler.transform(features.astype(np.float64))
        near = np.exp(-0.5 * _squares(scaled * self._stretch, self._centres))
        return np.asarray(scaled @ self._slopes + near @ self._weights + self._constant, dtype=np.float64)

    def to_onnx(self) -> bytes:
        """Returns the mean of the process as an ONNX file."""
        # |a - b|^2 = |a|^2 - 2 a b + |b|^2, so that no array of rows x centres x columns is made.
        nodes = [
            helper.make_node("Sub", ["features", "mean"], ["centred"]),
            helper.make_node("Div", ["centred", "scale"], ["scaled"]),
            helper.make_node("Mul", ["scaled", "stretch"], ["place"]),
            helper.make_node("Mul", ["place", "place"], ["squared"]),
            helper.make_node("ReduceSum", ["squared", "axes"], ["size"], keepdims=1),
            helper.make_node("MatMul", ["place", "centres"], ["product"]),
            helper.make_node("Sub", ["half_sizes", "product"], ["less"]),
            helper.make_node("Mul", ["size", "half"], ["half_size"]),
            helper.make_node("Add", ["half_size", "less"], ["distance"]),
            helper.make_node("Relu", ["distance"], ["positive"]),
            helper.make_node("Neg", ["positive"], ["exponent"]),
            helper.make_node("Exp", ["exponent"], ["near"]),
            helper.make_node("MatMul", ["near", "weights"], ["bend"]),
            helper.make_node("Gemm", ["scaled", "slopes", "constant"], ["line"]),
            helper.make_node("Add", ["line", "bend"], ["value"]),
        ]
        constants = {
            "mean": self._scaler.mean_,
            "scale": self._scaler.scale_,
            "stretch": self._stretch,
            "centres": self._centres.T,
            "half_sizes": 0.5 * (self._centres**2).sum(axis=1),
            "half": np.array([0.5]),
            "weights": self._weights[:, None],
            "slopes": self._slopes[:, None],
            "constant": np.array([self._constant]),
        }
        initializers = [
            numpy_helper.from_array(np.asarray(value, dtype=np.float32), name) for name, value in constants.items()
        ]
        initializers.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "axes"))
        graph = helper.make_graph(
            nodes,
            "regressor",
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, len(self._slopes)])],
            [helper.make_tensor_value_info("value", TensorProto.FLOAT, [None, 1])],
            initializer=initializers,
        )
        opset = [helper.make_opsetid("", ONNX_OPSET)]
        return serialize_with_canonical_names(helper.make_model(graph, opset_imports=opset, ir_version=ONNX_IR_VERSION))


@dataclass(frozen=True, slots=True, eq=False)
class _BendAndLine:
    """The kernel of rows with themselves; see `process_likelihood.Kernel`.

    Parameters are the length of each column, and the variances of bend and line.
    """

    scaled: FloatArray

    def matrix(self, parameters: FloatArray) -> FloatArray:
        line = np.exp(parameters[-1]) * (self.scaled @ self.scaled.T)
        return np.asarray(_CONSTANT + self._bend(parameters) + line)

    def gradient(self, parameters: FloatArray, sensitivity: FloatArray) -> FloatArray:
        scaled, columns = self.scaled, self.scaled.shape[1]
        bent = sensitivity * self._bend(parameters)
        # The derivative by a length is the sum of cells times squared distances, opened as in `to_onnx`.
        by_length = 2.0 * (bent.sum(axis=1) @ scaled**2 - np.einsum("ic,ij,jc->c", scaled, bent, scaled, optimize=True))
        by_line = np.exp(parameters[-1]) * float(np.sum((sensitivity @ scaled) * scaled))
        return np.concatenate([by_length * np.exp(-2.0 * parameters[:columns]), [bent.sum(), by_line]])

    def _bend(self, parameters: FloatArray) -> FloatArray:
        columns = self.scaled.shape[1]
        place = self.scaled * np.exp(-parameters[:columns])
        return np.asarray(np.exp(parameters[columns] - 0.5 * _squares(place, place)))


def _start(columns: int, residual: FloatArray) -> tuple[FloatArray, list[tuple[float, float]]]:
    """Where the search starts, and the bounds of the parameters."""
    size = float(np.log(residual.var() + _JITTER))
    # Distances grow with the number of columns; lengths that grow with them keep the start equally smooth.
    start = np.array([0.5 + 0.5 * np.log(columns)] * columns + [size - 1.0, size - 3.0, size - 3.0])
    return start, [(-2.0, 5.0)] * columns + [(size - 9.0, size + 3.0)] * 2 + [(size - 9.0, size + 1.0)]


def _squares(left: FloatArray, right: FloatArray) -> FloatArray:
    """Squared distances of every two rows."""
    sizes = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
    return np.asarray(np.maximum(sizes - 2.0 * left @ right.T, 0.0))
