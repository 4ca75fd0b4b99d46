"""What every regressor can do."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
FeatureArray = npt.NDArray[np.float32]


class Regressor(Protocol):
    """Learns one number per row. The constructor stores parameters and a seed, `fit` learns and returns self."""

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        """Learns from rows.

        Args:
            features: Shape (rows, columns), finite.
            target: Shape (rows,), finite.
        """
        ...

    def predict(self, features: FeatureArray) -> FloatArray:
        """Returns one value per row, shape (rows,)."""
        ...

    def to_onnx(self) -> bytes:
        """Returns the fitted model as an ONNX file with input `features` and one output of a value per row."""
        ...
