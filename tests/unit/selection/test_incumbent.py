"""The simpler answer stays until groups that were not seen show, beyond chance, that another one errs less."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.incumbent import Incumbent, is_beyond_chance
from predictor_service.selection.scoring import CandidateScore, HeldOutRows, predict_unchosen, put_first

ROWS_EACH = 5


def groups_of(count: int) -> list[frozenset[str]]:
    return [frozenset({f"family{group}"}) for group in range(count) for _ in range(ROWS_EACH)]


def gains(by_group: list[float]) -> FloatArray:
    return np.repeat(by_group, ROWS_EACH)


def test_a_gain_on_every_group_is_evidence() -> None:
    assert is_beyond_chance(gains([0.1, 0.12, 0.09, 0.1]), groups_of(4))


def test_a_gain_that_one_group_of_four_makes_is_chance_however_many_rows_it_has() -> None:
    assert not is_beyond_chance(gains([0.5, -0.1, -0.1, -0.05]), groups_of(4))
    repeated = np.repeat(gains([0.5, -0.1, -0.1, -0.05]), 50)
    assert not is_beyond_chance(repeated, [group for group in groups_of(4) for _ in range(50)])


def test_the_same_mean_and_spread_of_gains_is_evidence_of_more_groups() -> None:
    few, many = [0.5, -0.3], [0.5, -0.3] * 20
    assert not is_beyond_chance(gains(few), groups_of(2))
    assert is_beyond_chance(gains(many), groups_of(40))


@pytest.mark.parametrize("by_group", [[], [0.5], [-0.1, -0.1], [0.0, 0.0]], ids=["none", "one group", "loss", "equal"])
def test_nothing_one_group_no_gain_or_a_loss_displace_nothing(by_group: list[float]) -> None:
    assert not is_beyond_chance(gains(by_group), groups_of(len(by_group)))


def score(name: str, by_fold: list[float]) -> CandidateScore:
    """A candidate with one error for each of as many folds of one group."""
    fold = np.repeat(np.arange(len(by_fold)), ROWS_EACH)
    held_out = HeldOutRows(row=np.arange(len(fold)), fold=fold, value=gains(by_fold), models=(None,) * len(by_fold))  # type: ignore[arg-type]
    return CandidateScore(name=name, error_mean=float(np.mean(by_fold)), held_out=held_out)


def test_the_incumbent_is_served_where_the_best_candidate_leads_by_chance() -> None:
    table = [score("lucky", [0.0, 0.3, 0.3, 0.3]), score("plain", [0.4, 0.2, 0.2, 0.2])]
    target, incumbent = np.zeros(4 * ROWS_EACH), Incumbent(name="plain", groups=groups_of(4))
    assert [each.name for each in put_first(table, target, None)] == ["lucky", "plain"]
    assert [each.name for each in put_first(table, target, incumbent)] == ["plain", "lucky"]
    without, kept = predict_unchosen(table, target), predict_unchosen(table, target, incumbent)
    # Without fold 1, 2 or 3 the lucky one leads by its first fold; without fold 0 it trails.
    assert without.reshape(4, ROWS_EACH)[:, 0].tolist() == pytest.approx([0.4, 0.3, 0.3, 0.3])
    assert kept.reshape(4, ROWS_EACH)[:, 0].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])


def test_the_incumbent_yields_to_a_candidate_that_leads_on_every_group() -> None:
    table = [score("better", [0.1, 0.1, 0.12, 0.1]), score("plain", [0.4, 0.3, 0.3, 0.3])]
    incumbent = Incumbent(name="plain", groups=groups_of(4))
    assert put_first(table, np.zeros(4 * ROWS_EACH), incumbent)[0].name == "better"


def test_a_table_without_the_incumbent_is_served_best_first() -> None:
    table = [score("better", [0.1, 0.3]), score("other", [0.3, 0.2])]
    incumbent = Incumbent(name="refused", groups=groups_of(2))
    assert put_first(table, np.zeros(2 * ROWS_EACH), incumbent)[0].name == "better"
