"""Nothing that is served or scored became worse: at most 2 % above the error of before, on the same rows and splits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.goldens import accuracy_tables
from tests.goldens.accuracy_tables import JUDGED_BY, SMALL_PUBLIC, WORSE_MAX, PublicCase, judged
from tests.goldens.write_goldens import GOLDENS
from tests.support.shared_data import shared_data

BEFORE: dict[str, dict[str, Any]] = json.loads((GOLDENS / "accuracy.json").read_text())


def assert_not_worse(target: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    assert (now["rows"], now["groups"]) == (before["rows"], before["groups"])
    assert judged(target, now) <= WORSE_MAX * judged(target, before), JUDGED_BY.get(target, "mae")


@pytest.mark.parametrize("target", accuracy_tables.SMALL_TARGETS)
def test_a_small_part_of_our_own_set_is_answered_as_well_as_before(target: str) -> None:
    small = accuracy_tables.own_problem(target, accuracy_tables.SMALL_ROWS)
    now = accuracy_tables.scored_table(small, *accuracy_tables.SMALL_RULE)
    assert_not_worse(target, BEFORE["served_small"][target], now)


@pytest.mark.endurance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", accuracy_tables.OWN_TARGETS)
def test_our_own_set_is_answered_as_well_as_what_was_served_before(target: str) -> None:
    now = accuracy_tables.scored_table(accuracy_tables.own_problem(target), *accuracy_tables.OWN_RULE)
    assert_not_worse(target, BEFORE["served"][target], now)


@pytest.mark.endurance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", SMALL_PUBLIC, ids=lambda case: case.name)
def test_public_sets_are_scored_as_well_as_before(case: PublicCase) -> None:
    learning_task, level, folds = case.read(shared_data())
    now = accuracy_tables.scored_table(learning_task, level, folds)
    assert_not_worse(learning_task.target.quantity, BEFORE["evaluated_public"][case.name], now)
