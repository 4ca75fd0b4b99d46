"""Errors on jobs whose graph was measured at other settings: widths of intervals of known jobs.

Families are held out to learn how far off predictions of unseen jobs are. Here one setting of every kind of job is held
out while its other settings stay, and the same candidate answers that would have answered the unseen family: it was not
chosen for how small its errors at held-out settings are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from predictor_service.registry.manifest import NearRecord
from predictor_service.regressors.candidates import CandidateBuilder
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.conformal import calibrate_groups
from predictor_service.selection.folds import IndexArray, setting_folds
from predictor_service.selection.nearness import learn_nearness, name_kinds
from predictor_service.selection.scoring import clip_to_seen

CONFIDENCE: Final = 0.9
"""What the widths are calibrated at; see `learn_near`."""


def learn_near(
    errors: FloatArray, features: FloatArray, groups: Sequence[frozenset[str]], far: FloatArray
) -> NearRecord | None:
    """Learns the widths of jobs whose kind was measured, one vote per kind.

    Near is never wider than far. A row that the far interval misses is missed however wide the near one is, so it
    counts as an error that no near width reaches, and the nominal coverage holds for the narrower of both.

    Args:
        errors: At held-out settings, see `errors_at_settings`; NaN where a kind has one setting. Shape (rows,).
        features: Whole vectors, shape (rows, len(FEATURES)).
        groups: Families of each row.
        far: Half widths of unseen jobs' intervals at `CONFIDENCE`, in the same scale, shape (rows,).

    Returns:
        None where too few kinds were measured at several settings, or their errors are no smaller than unseen jobs'.
    """
    tested = np.flatnonzero(~np.isnan(errors))
    nearness = learn_nearness(features, groups) if len(tested) else None
    if nearness is None:
        return None
    kinds, _ = name_kinds(features)
    size, widest = np.abs(errors[tested]), float(far.max())
    reached = np.where(size <= far[tested], size, np.maximum(size, widest))
    scores = calibrate_groups(reached, [frozenset({str(kind)}) for kind in kinds[tested].tolist()])
    if not scores.is_supported(CONFIDENCE) or scores.half_width(CONFIDENCE) >= widest:
        return None
    return NearRecord(scores=scores, nearness=nearness)


def errors_at_settings(
    builders: Mapping[str, CandidateBuilder],
    chosen: Sequence[str],
    columns: FeatureArray,
    encoded: FloatArray,
    *,
    features: FloatArray,
    seed: int,
) -> FloatArray:
    """Errors on rows whose setting was held out, the other settings of their kind not.

    Args:
        builders: Candidates by name.
        chosen: The candidate that answers each row.
        columns: Shape (rows, columns).
        encoded: What was measured, in the learned scale, shape (rows,).
        features: Whole vectors, shape (rows, len(FEATURES)).
        seed: Handed to every candidate.

    Returns:
        Measured minus predicted, shape (rows,); NaN where a kind has one setting.
    """
    errors = np.full(len(encoded), np.nan)
    names = np.array(chosen)
    for fold in setting_folds(*name_kinds(features)):
        seen = encoded[fold.train]
        for name in sorted(set(names[fold.test].tolist())):
            rows: IndexArray = fold.test[names[fold.test] == name]
            model = builders[name](seed).fit(columns[fold.train], seen)
            errors[rows] = encoded[rows] - clip_to_seen(model.predict(columns[rows]), seen)
    return errors
