"""A regressor as it is served: an ONNX Runtime session with one thread. Nothing that was pickled is ever loaded."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from predictor_service.errors import ModelError
from predictor_service.registry.spread_record import GoldenVectors

AGREEMENT: Final = 1e-4
"""Largest accepted difference between a converted model and its original, relative to max(1, |value|)."""
CHUNK_ROWS: Final = 16_384

FloatArray = npt.NDArray[np.float64]
FeatureArray = npt.NDArray[np.float32]


class OnnxModel:
    """Predicts with a converted regressor; safe for many threads.

    Args:
        content: The ONNX file.

    Raises:
        ModelError: ONNX Runtime refuses it.
    """

    def __init__(self, content: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises classes of its own that share no root
            raise ModelError(f"ONNX Runtime refuses the model ({error})", remedy="train again") from error
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row.

        Args:
            features: Shape (rows, columns).
        """
        if len(features) <= CHUNK_ROWS:
            return self._run(features)
        parts = [self._run(features[start : start + CHUNK_ROWS]) for start in range(0, len(features), CHUNK_ROWS)]
        return np.concatenate(parts)

    def _run(self, features: FeatureArray) -> FloatArray:
        (values,) = self._session.run([self._output], {self._input: features})
        return np.asarray(values, dtype=np.float64).reshape(-1)


def check_agreement(model: OnnxModel, golden: GoldenVectors, name: str) -> None:
    """Replays stored vectors.

    Args:
        model: Loaded model.
        golden: Inputs and the answers expected.
        name: What to call the model in the message.

    Raises:
        ModelError: An answer differs by more than `AGREEMENT`, or is not finite.
    """
    expected = np.array(golden.outputs)
    found = model.predict(np.array(golden.inputs, dtype=np.float32))
    error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    if not np.all(np.isfinite(found)) or float(error.max(initial=0.0)) > AGREEMENT:
        raise ModelError(
            f"{name} differs from its golden vectors by {float(error.max()):.2g}, more than {AGREEMENT:g}",
            remedy="train again, or go back to the version before",
        )
