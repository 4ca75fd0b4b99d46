"""Table candidates of a target of a job alone, fitted and evaluated: they correct physics on one table of columns.

Untuned trees without any physics are one more candidate, see `untuned_trees`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray
from predictor_service.regressors.candidates import PUBLISHED, TABLE_CANDIDATES

UNTUNED: Final = "untuned_trees"
"""Learns the target itself, not what physics leaves open."""


def fit_candidates(
    table: FloatArray, encoded: FloatArray, seed: int, published: Sequence[int], names: Iterable[str] = TABLE_CANDIDATES
) -> dict[str, Any]:
    """Fits candidates.

    Args:
        table: Training rows, shape (rows, columns).
        encoded: In the learned scale, shape (rows,).
        seed: Of every candidate.
        published: Places of the columns that the set publishes; without any, the candidate that needs them is left out.
        names: Those of `TABLE_CANDIDATES` to fit.

    Returns:
        Fitted models by name.
    """
    return {
        name: TABLE_CANDIDATES[name](seed).fit(_seen_by(name, table, published), encoded)
        for name in names
        if published or name != PUBLISHED
    }


def predict_each(
    models: Mapping[str, Any], table: FloatArray, published: Sequence[int], seen: FloatArray
) -> dict[str, FloatArray]:
    """Predictions of every candidate, none beyond the largest correction of any training row.

    Args:
        models: Fitted, by name.
        table: Shape (rows, columns).
        published: As for `fit_candidates`.
        seen: Training values in the learned scale.
    """
    values = {}
    for name, model in models.items():
        answered = np.asarray(model.predict(_seen_by(name, table, published)), dtype=np.float64)
        values[name] = np.clip(answered, seen.min(), seen.max())
    return values


def _seen_by(name: str, table: FloatArray, published: Sequence[int]) -> FloatArray:
    return table[:, list(published)] if name == PUBLISHED else table
