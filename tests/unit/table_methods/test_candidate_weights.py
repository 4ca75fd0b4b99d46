"""How much each candidate counts, and what they say together."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.table_methods.candidate_weights import mix_answers, weigh_candidates

ERRORS = {"good": np.full(10, 0.1), "fair": np.full(10, -0.12), "poor": np.full(10, 0.4), "leader": np.full(10, 0.11)}


def test_weights_add_up_and_fall_with_the_error() -> None:
    weights = weigh_candidates(ERRORS, 9, leader="none", is_like_unseen=True)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights["good"] > weights["leader"] > weights["fair"] > weights["poor"]
    assert weights["fair"] / weights["good"] == pytest.approx(np.exp(-0.2 * 3))


def test_more_groups_choose_more_sharply() -> None:
    few, many = (weigh_candidates(ERRORS, groups, leader="none", is_like_unseen=True) for groups in (3, 3_000))
    assert few["good"] < 0.5
    assert many["good"] > 0.99


def test_the_leader_wins_ties_and_loses_to_what_beats_it_by_more_than_chance() -> None:
    assert weigh_candidates(ERRORS, 9, leader="leader", is_like_unseen=True)["leader"] > 0.4
    assert weigh_candidates(ERRORS, 900, leader="leader", is_like_unseen=True)["leader"] < 0.2


def test_errors_on_rows_unlike_those_to_come_do_not_count() -> None:
    weights = weigh_candidates(ERRORS, 9, leader="leader", is_like_unseen=False)
    assert weights["good"] == weights["fair"] == weights["poor"] < weights["leader"] < 0.6


def test_errors_of_nothing_are_weighed_too() -> None:
    weights = weigh_candidates({"one": np.zeros(3), "two": np.zeros(3)}, 3, leader="none", is_like_unseen=True)
    assert weights == {"one": 0.5, "two": 0.5}


def test_answers_of_equal_weight_have_the_outer_quarters_cut_off() -> None:
    answers = {name: np.array([value, -value]) for name, value in {"a": 1.0, "b": 2.0, "c": 4.0, "d": 900.0}.items()}
    assert mix_answers(answers, dict.fromkeys(answers, 0.25)) == pytest.approx([3.0, -3.0])


def test_two_candidates_alike_meet_in_the_middle_and_one_alone_is_trusted() -> None:
    answers = {"one": np.array([1.0]), "two": np.array([3.0]), "unweighted": np.array([99.0])}
    assert mix_answers(answers, {"one": 0.5, "two": 0.5}) == pytest.approx([2.0])
    assert mix_answers(answers, {"two": 1.0}) == pytest.approx([3.0])


def test_a_candidate_with_less_than_a_quarter_of_the_weight_cannot_pull_a_row_out_of_the_others() -> None:
    answers = {"one": np.array([1.0, 1.0]), "two": np.array([1.2, 1.2]), "wild": np.array([1e6, -1e6])}
    mixed = mix_answers(answers, {"one": 0.4, "two": 0.36, "wild": 0.24})
    assert ((mixed >= 1.0) & (mixed <= 1.2)).all()
