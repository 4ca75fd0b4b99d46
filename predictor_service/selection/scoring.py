"""The scored table: candidates by grouped folds, the smallest mean absolute error wins.

Source: OJPP paper, section 4.5 (AIP chooses the regressor with the smallest mean absolute error); folds by group, and
an incumbent that chance does not displace, are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictor_service.regressors.candidates import CandidateBuilder
from predictor_service.regressors.interface import FeatureArray, FloatArray, Regressor
from predictor_service.selection.folds import Fold
from predictor_service.selection.incumbent import Incumbent, is_beyond_chance

BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOutRows:
    """Predictions for rows whose groups were not trained on.

    Attributes:
        row: Index of each prediction's row; a row of two groups appears twice. Shape (predictions,).
        fold: Index of the fold that made each prediction. Shape (predictions,).
        value: The predictions in the model's own scale. Shape (predictions,).
        models: The regressor of each fold.
    """

    row: np.ndarray[tuple[int], np.dtype[np.intp]]
    fold: np.ndarray[tuple[int], np.dtype[np.intp]]
    value: FloatArray
    models: tuple[Regressor, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateScore:
    """How one candidate did.

    Attributes:
        name: Name in the table of candidates.
        error_mean: Mean absolute error over held-out rows, in the model's own scale.
        held_out: What it predicted.
    """

    name: str
    error_mean: float
    held_out: HeldOutRows


def score_candidates(
    candidates: Mapping[str, CandidateBuilder],
    features: FeatureArray,
    target: FloatArray,
    folds: Sequence[Fold],
    seed: int,
) -> list[CandidateScore]:
    """Scores every candidate on every fold.

    Args:
        candidates: Builders by name.
        features: Shape (rows, columns).
        target: Shape (rows,), in the model's own scale.
        folds: At least one.
        seed: Handed to every candidate.

    Returns:
        Best first; equals in the order of the table.
    """
    scores = [
        _score(name, [builder(seed) for _ in folds], features, target, folds) for name, builder in candidates.items()
    ]
    return sorted(scores, key=lambda score: score.error_mean)


def clip_to_seen(values: FloatArray, seen: FloatArray) -> FloatArray:
    """Never corrects physics by more than in any training row: a line must not run away outside its rows."""
    return np.clip(values, seen.min(), seen.max())


def put_first(
    scores: Sequence[CandidateScore], target: FloatArray, incumbent: Incumbent | None
) -> list[CandidateScore]:
    """The table in the order of service: best first, but the incumbent where the best is better by chance.

    Args:
        scores: Of candidates on the same folds, best first.
        target: As for `score_candidates`.
        incumbent: None = there is none.
    """
    best = _choose(scores, target, slice(None), incumbent)
    return [scores[best], *(score for place, score in enumerate(scores) if place != best)]


def predict_unchosen(
    scores: Sequence[CandidateScore], target: FloatArray, incumbent: Incumbent | None = None
) -> FloatArray:
    """Predictions for held-out rows without choosing by them: of each fold by the winner of the others.

    The winner's own errors are biased low, because it was chosen for how small they are; widths that are learned from
    them are too small for what comes next.

    Args:
        scores: Of candidates on the same folds, best first.
        target: As for `score_candidates`.
        incumbent: See `put_first`.

    Returns:
        In the model's own scale, in the order of `HeldOutRows.row`.
    """
    held_out = scores[0].held_out
    values = held_out.value.copy()
    for fold, best in enumerate(choose_unseen(scores, target, incumbent)):
        is_here = held_out.fold == fold
        values[is_here] = scores[best].held_out.value[is_here]
    return values


def choose_unseen(scores: Sequence[CandidateScore], target: FloatArray, incumbent: Incumbent | None) -> list[int]:
    """The candidate that the other folds would choose, for each fold: a place in `scores`."""
    held_out = scores[0].held_out
    elsewhere = [held_out.fold != fold for fold in range(len(held_out.models))]
    return [_choose(scores, target, rows, incumbent) if rows.any() else 0 for rows in elsewhere]


def _choose(
    scores: Sequence[CandidateScore], target: FloatArray, chosen: slice | BoolArray, incumbent: Incumbent | None
) -> int:
    """The place of the candidate that some of the held-out rows would choose."""
    rows = scores[0].held_out.row[chosen]
    errors = [np.abs(score.held_out.value[chosen] - target[rows]) for score in scores]
    best = int(np.argmin([error.mean() for error in errors]))
    if incumbent is None or not any(score.name == incumbent.name for score in scores):
        return best
    place = next(place for place, score in enumerate(scores) if score.name == incumbent.name)
    groups = [incumbent.groups[row] for row in rows.tolist()]
    return best if is_beyond_chance(errors[place] - errors[best], groups) else place


def _score(
    name: str, models: list[Regressor], features: FeatureArray, target: FloatArray, folds: Sequence[Fold]
) -> CandidateScore:
    values = [
        clip_to_seen(
            model.fit(features[fold.train], target[fold.train]).predict(features[fold.test]), target[fold.train]
        )
        for model, fold in zip(models, folds, strict=True)
    ]
    held_out = HeldOutRows(
        row=np.concatenate([fold.test for fold in folds]),
        fold=np.concatenate([np.full(len(fold.test), index) for index, fold in enumerate(folds)]),
        value=np.concatenate(values),
        models=tuple(models),
    )
    error_mean = float(np.mean(np.abs(held_out.value - target[held_out.row])))
    return CandidateScore(name=name, error_mean=error_mean, held_out=held_out)
