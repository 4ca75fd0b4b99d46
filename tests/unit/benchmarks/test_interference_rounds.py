"""The interference benchmark tests no job on what was trained on, and gives every method the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.interference_accuracy import compare_campaigns
from benchmarks.interference_rounds import REFERENCES, predict_held_out
from tests.support.few_candidates import few_trees
from tests.support.time_slicing_jobs import turn_taking_problem


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_trees():
        yield


@pytest.mark.endurance
def test_observed_pairs_are_trained_on_and_not_tested() -> None:
    learning_task = turn_taking_problem(jobs=8, families=4)
    plain = predict_held_out(learning_task, "family", 0)
    observed = predict_held_out(learning_task, "family", 0, shots=1)
    # Every job is new once; it runs with one known job, and both directions are measured.
    assert len(plain.measured) - len(observed.measured) == 2 * 8
    assert set(REFERENCES) <= set(plain.values)
    assert {f"{name} without" for name in REFERENCES} <= set(observed.values)
    assert all(values.shape == observed.measured.shape for values in observed.values.values())
    errors = {name: np.abs(values - plain.measured).mean() for name, values in plain.values.items()}
    assert errors["ours"] < 0.5 * errors["mean"]


def test_gavels_campaigns_differ_as_the_page_of_interference_says() -> None:
    assert compare_campaigns(Path("datasets/public/gavel")) == {"Tesla K80": 0.246, "Tesla V100-SXM2-16GB": 0.66}
