"""The benchmark against the best reference compares on the same rows and chooses that without the test rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.interference_rounds import REFERENCES
from benchmarks.slowdown_references import CELLS, ROUNDS_MAX, Cell, _compare, _inner_errors, _summarize, predict_cell
from predictor_service.evaluation.scoring import plan_rounds
from tests.support.few_candidates import few_trees
from tests.support.time_slicing_jobs import turn_taking_problem


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_trees():
        yield


@pytest.mark.endurance
def test_every_method_answers_every_held_out_row() -> None:
    cell = predict_cell(turn_taking_problem(jobs=6), "random_pair")
    assert set(cell.values) == {"ours", *REFERENCES}
    assert all(values.shape == cell.measured.shape == cell.inside_90.shape for values in cell.values.values())
    assert len(cell.groups) == len(cell.measured)
    assert cell.reference in REFERENCES
    assert cell.method in {"served", "evaluate"}


def test_the_reference_is_chosen_on_the_training_rows() -> None:
    learning_task = turn_taking_problem(jobs=6)
    train = plan_rounds(learning_task, "random_pair", ROUNDS_MAX, 0)[0].train
    assert train is not None
    strange = dataclasses.replace(learning_task, measured=learning_task.measured.copy())
    tested = np.flatnonzero(~np.isin(learning_task.row_ids, train.row_ids))
    strange.measured[tested] = 99.0
    again = plan_rounds(strange, "random_pair", ROUNDS_MAX, 0)[0].train
    assert again is not None
    assert _inner_errors(train, "random_pair") == _inner_errors(again, "random_pair")


def test_a_cell_that_is_worse_than_its_reference_beyond_chance_misses_the_bar() -> None:
    random = np.random.default_rng(0)
    measured = random.uniform(0.0, 1.0, 300)
    values = {"ours": measured + 0.2, "mean": measured + 0.1}
    cell = Cell(
        method="served",
        reference="mean",
        measured=measured,
        values=values,
        inside_90=np.ones(300, dtype=bool),
        groups=[frozenset({f"group{row % 30}"}) for row in range(300)],
    )
    table = _compare(cell)
    assert table["ratio"] == 2.0
    summary = _summarize([table], [cell])
    assert summary["met"] == {"geometric_mean_ratio": False, "largest_lower_95": False, "coverage_90_ratio": False}


def test_cells_cover_every_kind_of_what_is_unseen_and_gavels_second_campaign() -> None:
    assert {level for _, level in CELLS} == {"random_pair", "job", "family", "device"}
    assert {("gavel_2020_v100", "random_pair"), ("gavel_2020", "device")} <= set(CELLS)
