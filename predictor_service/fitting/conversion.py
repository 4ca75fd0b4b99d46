"""From fitted estimators to files that a service loads: converted, and proven to answer as the original does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from predictor_service.errors import ModelError
from predictor_service.registry.onnx_model import OnnxModel, check_agreement
from predictor_service.registry.spread_record import GoldenVectors, SpreadRecord
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.scikit import convert_scikit
from predictor_service.selection.local_bounds import LocalBounds

GOLDEN_MAX = 32


class NotLearnable(Exception):  # noqa: N818 (an outcome that is recorded, not a failure)
    """The rows do not suffice, or no candidate may be served."""


def golden_of(columns: FeatureArray, predict: Callable[[FeatureArray], FloatArray]) -> GoldenVectors:
    """Some rows and what the original says of them."""
    inputs = columns[:: max(1, -(-len(columns) // GOLDEN_MAX))]
    return GoldenVectors(
        inputs=tuple(tuple(float(value) for value in row) for row in inputs),
        outputs=tuple(float(value) for value in predict(inputs)),
    )


def prove(convert: Callable[[], bytes], golden: GoldenVectors, name: str) -> bytes:
    """The converted model, once it has answered as the original does.

    Raises:
        NotLearnable: It does not convert, or answers otherwise.
    """
    try:
        content = convert()
        check_agreement(OnnxModel(content), golden, name)
    except ModelError as error:
        raise NotLearnable(error.message) from error
    except Exception as error:  # converters raise whatever their libraries raise
        raise NotLearnable(f"does not convert ({type(error).__name__})") from error
    return content


def store_spread(local: LocalBounds, columns: FeatureArray, file_name: str) -> tuple[SpreadRecord, bytes] | None:
    """The learned spread of errors with its file; None where errors are as large everywhere, or it does not convert.

    Args:
        local: What held-out rows taught.
        columns: Of these rows.
        file_name: For the file.
    """
    if local.spread is None:
        return None
    golden = golden_of(columns, lambda inputs: np.asarray(local.spread.predict(inputs), dtype=np.float64))
    try:
        content = prove(lambda: convert_scikit(local.spread, columns.shape[1]), golden, "spread")
    except NotLearnable:
        return None
    record = SpreadRecord(
        scores=local.scores,
        lowest=local.lowest,
        highest=local.highest,
        file_name=file_name,
        file_sha256=hashlib.sha256(content).hexdigest(),
        golden=golden,
    )
    return record, content
