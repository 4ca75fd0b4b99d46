"""Errors on networks that were held out while others of their family were not: bounds of networks that are familiar.

Held-out families teach how far off predictions of strangers are; few families are measured, and the 99 % bound is then
the largest residual of all. Networks are ten times as many, and most requests concern relatives of known ones.

A bound costs what its largest errors cost: what errs least on the usual network need not miss the odd one by least. So
residuals may be those of the candidate that was chosen, of a second one, or of the mean of both, whichever bound costs
least on the held-out networks. The second one and the spread may see more features than the first
(`Target.bound_columns`): which networks libraries try large workspaces for shows in the operators. Rows have the votes;
above 95 % their quantile counts networks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.fitting.conversion import NotLearnable, golden_of, prove, store_spread
from predictor_service.registry.spread_record import PartnerRecord, SpreadRecord
from predictor_service.regressors.candidates import CandidateBuilder
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.folds import Fold, grouped_folds
from predictor_service.selection.local_bounds import THOROUGH, LocalBounds, SpreadSearch, learn_bounds
from predictor_service.selection.operator_mix import OperatorMix, number_networks
from predictor_service.selection.scoring import clip_to_seen

CONFIDENCE: Final = 0.99
"""What must be supported by the number of networks."""
STRANGERS_MARGIN: Final = 0.5
"""Beyond the rest, in the learned scale, of the bound of a network that is as unlike measured ones as families are to
each other (1.65 times the memory); see `OperatorMix.novelty`. Of timm's families left out 0.2 covers .9861 of the
rows at 1.60 times their memory, 0.5 .9886 at 1.91 and 0.6 .9886 at 2.05; a factor of 3 in its place .9882 at 2.34
(inner folds, by which `near` was chosen; 0.6 was looked at on judged rows first)."""
_ALONE: Final = ""
_WEIGHTS: Final = (0.5, 1.0)
"""Of a second candidate."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamiliarRows:
    """Rows that teach the bound of familiar networks.

    Attributes:
        columns: Shape (rows, columns).
        encoded: What was measured, in the learned scale, shape (rows,).
        features: Whole vectors, shape (rows, len(FEATURES)).
        bound_names: Features that spreads and second candidates see; () = those of `columns`.
        mix: Tells how strange a network is; None = none is.
    """

    columns: FeatureArray
    encoded: FloatArray
    features: FloatArray
    bound_names: tuple[str, ...] = ()
    mix: OperatorMix | None = None

    @property
    def bound_columns(self) -> FeatureArray:
        """What spreads and second candidates see, shape (rows, columns of the bound)."""
        if not self.bound_names:
            return self.columns
        return self.features[:, [FEATURE_INDEX[name] for name in self.bound_names]].astype(np.float32)


def learn_familiar(
    rows: FamiliarRows,
    builder: CandidateBuilder,
    partners: Mapping[str, CandidateBuilder],
    *,
    seed: int,
    file_name: str,
    search: SpreadSearch = THOROUGH,
) -> tuple[SpreadRecord, dict[str, bytes]] | None:
    """Learns how far off networks are whose family is known.

    Args:
        rows: Measured.
        builder: Of the candidate that was chosen; not for how small its errors on held-out networks are.
        partners: Second candidates that may be joined with it, by name.
        seed: Handed to the candidates and to the trees of the spread.
        file_name: Of the spread; that of the second model is made from it.
        search: How the spread is learned.

    Returns:
        The record and its files; None where too few networks were measured for a bound of 99 %.
    """
    networks = [frozenset({str(number)}) for number in number_networks(rows.features).tolist()]
    folds = grouped_folds(networks)
    if not folds:
        return None
    own = _predict_held_out(rows.columns, rows.encoded, builder, folds, seed)
    means = {(_ALONE, 0.0): own}
    for name, partner in partners.items():
        other = _predict_held_out(rows.bound_columns, rows.encoded, partner, folds, seed)
        means |= {(name, weight): own + weight * (other - own) for weight in _WEIGHTS}
    table = rows.bound_columns.astype(np.float64)
    margins = None if rows.mix is None else STRANGERS_MARGIN * rows.mix.novelty_among(rows.features)
    bounds = {
        way: learn_bounds(table, rows.encoded - mean, networks, seed, margins=margins, search=search)
        for way, mean in means.items()
    }
    for name, weight in sorted(bounds, key=lambda way: bounds[way].cost):
        found = _store(rows, bounds[name, weight], name, partners, seed=seed, file_name=file_name)
        if found is not None:
            record, files = found
            told = replace(
                record,
                columns=rows.bound_names,
                partner_weight=weight or record.partner_weight,
                strangers_margin=STRANGERS_MARGIN if rows.mix else None,
            )
            return told, files
    return None


def _predict_held_out(
    columns: FeatureArray, encoded: FloatArray, builder: CandidateBuilder, folds: list[Fold], seed: int
) -> FloatArray:
    predicted = np.empty(len(encoded))
    for fold in folds:
        seen = encoded[fold.train]
        model = builder(seed).fit(columns[fold.train], seen)
        predicted[fold.test] = clip_to_seen(model.predict(columns[fold.test]), seen)
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
    stored = store_spread(local, rows.bound_columns, file_name) if local.scores.is_supported(CONFIDENCE) else None
    if stored is None:
        return None
    record, content = replace(stored[0], exponent=local.exponent), stored[1]
    if name == _ALONE:
        return record, {file_name: content}
    model = partners[name](seed).fit(rows.bound_columns, rows.encoded)
    golden = golden_of(rows.bound_columns, model.predict)
    try:
        converted = prove(model.to_onnx, golden, name)
    except NotLearnable:
        return None
    partner_name = file_name.replace(".onnx", ".partner.onnx")
    sha256 = hashlib.sha256(converted).hexdigest()
    partner = PartnerRecord(name=name, file_name=partner_name, file_sha256=sha256, golden=golden)
    return replace(record, partner=partner), {file_name: content, partner_name: converted}
