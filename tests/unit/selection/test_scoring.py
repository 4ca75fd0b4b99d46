"""Errors that widths are learned from must not be those that chose the model."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.scoring import CandidateScore, HeldOutRows, predict_unchosen

FOLDS, ROWS_EACH = 3, 4
TARGET = np.zeros(FOLDS * ROWS_EACH)


def score(name: str, errors: FloatArray) -> CandidateScore:
    """A candidate with one size of error per fold."""
    fold = np.repeat(np.arange(FOLDS), ROWS_EACH)
    held_out = HeldOutRows(row=np.arange(len(fold)), fold=fold, value=errors[fold], models=(_Unused(),) * FOLDS)
    return CandidateScore(name=name, error_mean=float(np.abs(held_out.value).mean()), held_out=held_out)


class _Unused:
    """Stands in for the model of a fold; it is never called."""

    def fit(self, features: object, target: object) -> _Unused:
        return self

    def predict(self, features: object) -> FloatArray:
        return np.zeros(0)

    def to_onnx(self) -> bytes:
        return b""


def test_a_fold_is_answered_by_the_candidate_that_errs_least_on_the_others() -> None:
    unsteady, steady = score("unsteady", np.array([0.0, 0.4, 0.4])), score("steady", np.array([0.9, 0.3, 0.3]))
    values = predict_unchosen([unsteady, steady], TARGET)
    # Without fold 0 the steady one leads, and its error there counts; with fold 0 the unsteady one leads.
    assert values.reshape(FOLDS, ROWS_EACH)[:, 0].tolist() == pytest.approx([0.9, 0.4, 0.4])


def test_chance_makes_the_winners_own_errors_smaller_than_those_of_the_choice() -> None:
    random = np.random.default_rng(5)
    own, unchosen = [], []
    for _ in range(200):
        scores = sorted((score(str(i), random.normal(0.0, 1.0, FOLDS)) for i in range(8)), key=lambda s: s.error_mean)
        own.append(scores[0].error_mean)
        unchosen.append(float(np.abs(predict_unchosen(scores, TARGET)).mean()))
    assert np.mean(own) < 0.7 * np.mean(unchosen)


def test_one_fold_leaves_nothing_to_choose_by() -> None:
    fold = np.zeros(5, dtype=np.intp)
    held_out = HeldOutRows(row=np.arange(5), fold=fold, value=np.full(5, 0.5), models=(_Unused(),))
    only = CandidateScore(name="first", error_mean=0.5, held_out=held_out)
    assert predict_unchosen([only], np.zeros(5)).tolist() == [0.5] * 5
