"""No candidate's work grows with a power of the rows without an end: evaluations accept 20,000 of them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import onnx
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from predictor_service.features.devices import STANDIN_DEVICE
from predictor_service.fitting.competition import list_candidates
from predictor_service.fitting.conversion import NotLearnable
from predictor_service.fitting.fit import FittingTask, fit_target
from predictor_service.regressors import candidates
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.scikit import ScikitRegressor
from predictor_service.selection.targets import MEMORY, SM_ACTIVITY, UTILIZATION, Target

FOREST = candidates.CANDIDATES["extra_trees"]
COLUMNS = np.arange(200, dtype=np.float32).reshape(100, 2)


class Recording(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Keeps the targets that it was given."""

    def fit(self, features: FeatureArray, target: FloatArray) -> Self:
        self.seen_ = target
        return self


def seen(rows_max: int | None, seed: int) -> Any:
    estimator = Recording()
    ScikitRegressor(estimator, rows_max=rows_max, seed=seed).fit(COLUMNS, np.arange(100.0))
    return estimator.seen_.tolist()


def test_of_more_rows_than_allowed_so_many_are_drawn_by_the_seed_in_their_order() -> None:
    assert len(seen(30, 1)) == 30
    assert seen(30, 1) == sorted(seen(30, 1)) == seen(30, 1)
    assert seen(30, 1) != seen(30, 2)


@pytest.mark.parametrize("rows_max", [None, 100])
def test_as_many_rows_as_allowed_are_all_learned_from(rows_max: int | None) -> None:
    assert seen(rows_max, 1) == list(range(100))


def test_support_vectors_learn_from_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "SUPPORT_ROWS_MAX", 40)
    noise = np.random.default_rng(0).normal(size=100)
    few = candidates.CANDIDATES["support_vector_regression"](0).fit(COLUMNS, noise).to_onnx()
    monkeypatch.setattr(candidates, "SUPPORT_ROWS_MAX", 100)
    assert len(candidates.CANDIDATES["support_vector_regression"](0).fit(COLUMNS, noise).to_onnx()) > len(few)


def trees_of(content: bytes) -> int:
    """How many trees a stored forest has."""
    nodes = [node for node in onnx.load_from_string(content).graph.node if node.op_type == "TreeEnsembleRegressor"]
    (places,) = [each.ints for node in nodes for each in node.attribute if each.name == "nodes_treeids"]
    return len(set(places))


@pytest.mark.parametrize(
    ("target", "served_rows", "trees"),
    [
        (UTILIZATION, 100, 240),
        (SM_ACTIVITY, 100, 240),
        (UTILIZATION, None, 60),
        (UTILIZATION, 1_001, 60),
        (MEMORY, 100, 60),
    ],
)
def test_the_forest_that_is_served_for_a_share_of_time_is_steadier_where_rows_are_few(
    target: Target, served_rows: int | None, trees: int
) -> None:
    listed = list_candidates(target, STANDIN_DEVICE, is_public=False, is_of_all_types=False, served_rows=served_rows)
    assert trees_of(listed["extra_trees"](0).fit(COLUMNS, COLUMNS[:, 0].astype(np.float64)).to_onnx()) == trees


def test_only_the_forest_that_is_stored_has_more_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor_service.fitting.competition.CANDIDATES", {"extra_trees": FOREST})
    fitted = fit_target(
        FittingTask(
            target=SM_ACTIVITY,
            device=STANDIN_DEVICE,
            columns=np.repeat(COLUMNS[:40], len(SM_ACTIVITY.columns) // 2 + 1, axis=1)[:, : len(SM_ACTIVITY.columns)],
            measured=np.linspace(0.1, 0.9, 40),
            analytical_estimate=np.ones(40),
            groups=[frozenset({f"family{row % 4}"}) for row in range(40)],
            seed=0,
        )
    )

    assert trees_of(fitted.files[fitted.record.file_name]) == 240
    assert {trees_of(model.to_onnx()) for model in fitted.score.held_out.models} == {60}


@pytest.mark.parametrize(("rows", "families"), [(3, 3), (6, 2)])
def test_rows_that_are_too_few_are_told_how_many_it_takes(rows: int, families: int) -> None:
    task = FittingTask(
        target=UTILIZATION,
        device=STANDIN_DEVICE,
        columns=np.ones((rows, len(UTILIZATION.columns)), dtype=np.float32),
        measured=np.full(rows, 0.5),
        analytical_estimate=np.ones(rows),
        groups=[frozenset({f"family{row % families}"}) for row in range(rows)],
        seed=0,
    )
    with pytest.raises(NotLearnable, match=f"{rows} rows of {families} families are too few, 6 of 3 the least"):
        fit_target(task)
