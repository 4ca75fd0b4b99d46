"""Share of its own time that a job computes for, where all of the rest is spent waiting for input.

    share of a step that computes = factor x computing / (factor x computing + waiting)

A job states which share of a step waits. The wait is as long as its input makes it; what computes takes longer than
stated by a factor that differs between runs of one job about as much as between jobs. One factor for all is therefore
the whole law. Jobs without waits compute all the time, and teach nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from predictor_service.features.job_features import INPUT_WAIT
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.onnx_names import serialize_with_canonical_names

_OPSET: Final = 15
_IR_VERSION: Final = 8
_WAIT_MIN: Final = 0.01
"""Of a step: the factor of jobs that wait less drowns in how exactly shares are measured."""
_IDLE_MIN: Final = 0.01
_FACTOR_MAX: Final = 8.0


class WaitingLaw:
    """The law with its factor fitted: the median of rows, which a few disturbed runs do not move.

    Args:
        columns: Names of the columns that it will see, the input wait among them.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._place = list(columns).index(INPUT_WAIT)
        self._columns = len(columns)
        self._factor = 1.0

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows; see `Regressor`. The target is a share of the time that is not spent waiting for input."""
        wait = self._wait(features)
        busy = target * (1.0 - wait)
        taught = (wait >= _WAIT_MIN) & (busy > 0.0) & (busy <= 1.0 - _IDLE_MIN)
        stated = (1.0 - wait[taught]) / wait[taught]
        factors = busy[taught] / (1.0 - busy[taught]) / stated
        self._factor = float(np.clip(np.median(factors), 1.0 / _FACTOR_MAX, _FACTOR_MAX)) if len(factors) else 1.0
        return self

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row; see `Regressor`."""
        wait = self._wait(features)
        return np.asarray(self._factor / (self._factor * (1.0 - wait) + wait))

    def to_onnx(self) -> bytes:
        """Returns the law as an ONNX file."""
        nodes = [
            helper.make_node("Gather", ["features", "place"], ["wait"], axis=1),
            helper.make_node("Mul", ["wait", "factor_less_one"], ["shortened"]),
            helper.make_node("Sub", ["factor", "shortened"], ["length"]),
            helper.make_node("Div", ["factor", "length"], ["value"]),
        ]
        constants = {"factor": self._factor, "factor_less_one": self._factor - 1.0}
        initializers = [
            numpy_helper.from_array(np.array(value, dtype=np.float32), name) for name, value in constants.items()
        ]
        initializers.append(numpy_helper.from_array(np.array([self._place], dtype=np.int64), "place"))
        graph = helper.make_graph(
            nodes,
            "regressor",
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, self._columns])],
            [helper.make_tensor_value_info("value", TensorProto.FLOAT, [None, 1])],
            initializer=initializers,
        )
        operator_sets = [helper.make_opsetid("", _OPSET)]
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=operator_sets, ir_version=_IR_VERSION)
        return serialize_with_canonical_names(model)

    def _wait(self, features: FeatureArray) -> FloatArray:
        return np.asarray(features[:, self._place], dtype=np.float64)
