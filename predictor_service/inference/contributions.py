"""How much each input moves an estimate, in parts that add up to it.

Served models are ONNX files of any kind, so that what they share is used: they can be asked. Starting from a mean
training row, inputs take the job's values one after the other, and each gets the change that it makes; this is
averaged over several seeded orders and their reverses. Every order adds up to the estimate exactly. For a linear model
all orders agree and the parts are coefficient times distance; for others they approach the Shapley values against the
mean row (xgboost's own `pred_contribs` compares with its training rows instead, and needs the native model).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from predictor_service.inference.records import Contribution
from predictor_service.registry.onnx_model import FeatureArray, FloatArray

BASELINE: Final = "baseline"
"""The estimate of a mean training row with this job's physics."""
OTHER_FEATURES: Final = "other_features"
BETWEEN_BATCHES: Final = "between_batches"
"""What the curve over the batch adds to the model asked at the very batch."""
SHOWN_MAX: Final = 8
_ORDERS: Final = 8
_SEED: Final = 20


def list_contributions(
    names: tuple[str, ...],
    row: FeatureArray,
    mean: FloatArray,
    predict: Callable[[FeatureArray], FloatArray],
    estimate: float,
) -> tuple[Contribution, ...]:
    """Lists the largest contributions, and what the rest sums up to.

    Args:
        names: Of the inputs.
        row: The job's inputs, shape (columns,).
        mean: Those of a mean training row, same shape.
        predict: The model in the target's unit, for rows of shape (rows, columns).
        estimate: What was answered.

    Returns:
        Baseline first, then the largest inputs, then the rest; they add up to the estimate.
    """
    moved, baseline, direct = _average_moves(row, mean, predict)
    order = np.argsort(-np.abs(moved), kind="stable")
    shown = [place for place in order[:SHOWN_MAX].tolist() if moved[place] != 0]
    rest = float(moved.sum() - moved[shown].sum())
    parts = [Contribution(feature=BASELINE, feature_value=0.0, contribution=baseline)]
    parts += [
        Contribution(feature=names[place], feature_value=float(row[place]), contribution=float(moved[place]))
        for place in shown
    ]
    if len(row) > len(shown):
        parts.append(Contribution(feature=OTHER_FEATURES, feature_value=0.0, contribution=rest))
    if estimate != direct:
        parts.append(Contribution(feature=BETWEEN_BATCHES, feature_value=0.0, contribution=estimate - direct))
    return tuple(parts)


def _average_moves(
    row: FeatureArray, mean: FloatArray, predict: Callable[[FeatureArray], FloatArray]
) -> tuple[FloatArray, float, float]:
    """Mean change that each input makes, the estimate of the mean row, and that of the job's row."""
    random, columns = np.random.default_rng(_SEED), len(row)
    orders = [random.permutation(columns) for _ in range(_ORDERS)]
    orders += [order[::-1] for order in orders]
    paths = np.repeat(mean.astype(np.float32)[None, :], len(orders) * (columns + 1), axis=0)
    paths = paths.reshape(len(orders), columns + 1, columns)
    for path, order in zip(paths, orders, strict=True):
        for step, place in enumerate(order, start=1):
            path[step:, place] = row[place]
    values = predict(paths.reshape(-1, columns)).reshape(len(orders), columns + 1)
    moved = np.zeros(columns)
    for order, value in zip(orders, values, strict=True):
        moved[order] += np.diff(value)
    return moved / len(orders), float(values[0, 0]), float(values[0, -1])
