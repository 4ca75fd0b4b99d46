"""Errors on networks that were held out while others of their family were not: bounds of networks that are familiar.

Held-out families teach how far off predictions of strangers are; few families are measured, and the 99 % bound is then
the largest residual of all. Networks are ten times as many, and most requests concern relatives of known ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from predictor_service.fitting.conversion import store_spread
from predictor_service.registry.manifest import SpreadRecord
from predictor_service.regressors.candidates import CandidateBuilder
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.folds import grouped_folds
from predictor_service.selection.local_bounds import learn_bounds
from predictor_service.selection.operator_mix import number_networks
from predictor_service.selection.scoring import clip_to_seen

CONFIDENCE: Final = 0.99
"""What must be supported by the number of networks."""


def learn_familiar(
    builder: CandidateBuilder,
    columns: FeatureArray,
    encoded: FloatArray,
    features: FloatArray,
    *,
    seed: int,
    file_name: str,
) -> tuple[SpreadRecord, bytes] | None:
    """Learns how far off networks are whose family is known, one vote per network.

    Args:
        builder: Of the candidate that was chosen; not for how small its errors on held-out networks are.
        columns: Shape (rows, columns).
        encoded: What was measured, in the learned scale, shape (rows,).
        features: Whole vectors, shape (rows, len(FEATURES)).
        seed: Handed to the candidate and to the trees of the spread.
        file_name: Of the spread.

    Returns:
        None where too few networks were measured for a bound of 99 %.
    """
    networks = [frozenset({str(number)}) for number in number_networks(features).tolist()]
    residuals = _errors_of_networks(builder, columns, encoded, networks, seed)
    if residuals is None:
        return None
    local = learn_bounds(columns.astype(np.float64), residuals, networks, seed, one_vote_per_group=True)
    return store_spread(local, columns, file_name) if local.scores.is_supported(CONFIDENCE) else None


def _errors_of_networks(
    builder: CandidateBuilder,
    columns: FeatureArray,
    encoded: FloatArray,
    networks: Sequence[frozenset[str]],
    seed: int,
) -> FloatArray | None:
    residuals = np.empty(len(encoded))
    folds = grouped_folds(networks)
    for fold in folds:
        seen = encoded[fold.train]
        model = builder(seed).fit(columns[fold.train], seen)
        residuals[fold.test] = encoded[fold.test] - clip_to_seen(model.predict(columns[fold.test]), seen)
    return residuals if folds else None
