"""Errors on networks that were held out while others of their family were not: bounds of networks that are familiar.

Held-out families teach how far off predictions of strangers are; few families are measured, and the 99 % bound is then
the largest residual of all. Networks are ten times as many, and most requests concern relatives of known ones.

A bound costs what its largest errors cost, and models of two kinds seldom miss the same network: residuals may be those
of the mean of the candidate that was chosen and a second one, whichever bound costs least on the held-out networks
(timm's memory on an A100: 1.36 times the measured one, with the first alone 1.44). Rows have the votes; above 95 %
their quantile counts networks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from predictor_service.fitting.conversion import NotLearnable, golden_of, prove, store_spread
from predictor_service.registry.spread_record import PartnerRecord, SpreadRecord
from predictor_service.regressors.candidates import CandidateBuilder
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.folds import Fold, grouped_folds
from predictor_service.selection.local_bounds import THOROUGH, LocalBounds, learn_bounds
from predictor_service.selection.operator_mix import number_networks
from predictor_service.selection.scoring import clip_to_seen

CONFIDENCE: Final = 0.99
"""What must be supported by the number of networks."""
_ALONE: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamiliarRows:
    """Rows that teach the bound of familiar networks.

    Attributes:
        columns: Shape (rows, columns).
        encoded: What was measured, in the learned scale, shape (rows,).
        features: Whole vectors, shape (rows, len(FEATURES)).
    """

    columns: FeatureArray
    encoded: FloatArray
    features: FloatArray


def learn_familiar(
    rows: FamiliarRows,
    builder: CandidateBuilder,
    partners: Mapping[str, CandidateBuilder],
    *,
    seed: int,
    file_name: str,
) -> tuple[SpreadRecord, dict[str, bytes]] | None:
    """Learns how far off networks are whose family is known.

    Args:
        rows: Measured.
        builder: Of the candidate that was chosen; not for how small its errors on held-out networks are.
        partners: Second candidates that may be joined with it, by name.
        seed: Handed to the candidates and to the trees of the spread.
        file_name: Of the spread; that of the second model is made from it.

    Returns:
        The record and its files; None where too few networks were measured for a bound of 99 %.
    """
    networks = [frozenset({str(number)}) for number in number_networks(rows.features).tolist()]
    folds = grouped_folds(networks)
    if not folds:
        return None
    own = _predict_held_out(rows, builder, folds, seed)
    means = {_ALONE: own} | {
        name: (own + _predict_held_out(rows, partner, folds, seed)) / 2 for name, partner in partners.items()
    }
    table = rows.columns.astype(np.float64)
    bounds = {
        name: learn_bounds(table, rows.encoded - mean, networks, seed, search=THOROUGH) for name, mean in means.items()
    }
    for name in sorted(bounds, key=lambda each: bounds[each].cost):
        found = _store(rows, bounds[name], name, partners, seed=seed, file_name=file_name)
        if found is not None:
            return found
    return None


def _predict_held_out(rows: FamiliarRows, builder: CandidateBuilder, folds: list[Fold], seed: int) -> FloatArray:
    predicted = np.empty(len(rows.encoded))
    for fold in folds:
        seen = rows.encoded[fold.train]
        model = builder(seed).fit(rows.columns[fold.train], seen)
        predicted[fold.test] = clip_to_seen(model.predict(rows.columns[fold.test]), seen)
    return predicted


def _store(
    rows: FamiliarRows,
    local: LocalBounds,
    name: str,
    partners: Mapping[str, CandidateBuilder],
    *,
    seed: int,
    file_name: str,
) -> tuple[SpreadRecord, dict[str, bytes]] | None:
    stored = store_spread(local, rows.columns, file_name) if local.scores.is_supported(CONFIDENCE) else None
    if stored is None:
        return None
    record, content = replace(stored[0], exponent=local.exponent), stored[1]
    if name == _ALONE:
        return record, {file_name: content}
    model = partners[name](seed).fit(rows.columns, rows.encoded)
    golden = golden_of(rows.columns, model.predict)
    try:
        converted = prove(model.to_onnx, golden, name)
    except NotLearnable:
        return None
    partner_name = file_name.replace(".onnx", ".partner.onnx")
    sha256 = hashlib.sha256(converted).hexdigest()
    partner = PartnerRecord(name=name, file_name=partner_name, file_sha256=sha256, golden=golden)
    return replace(record, partner=partner), {file_name: content, partner_name: converted}
