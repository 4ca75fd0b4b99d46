"""Utilization of the stand-in starts from how long a step waits for input; seeds do not decide it."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.features.devices import STANDIN_DEVICE
from predictor_service.fitting.competition import WAITING, incumbent_of, list_candidates
from predictor_service.fitting.conversion import golden_of, prove
from predictor_service.fitting.fit import FittingTask, fit_target
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.regressors.waiting_law import WaitingLaw
from predictor_service.selection.targets import UTILIZATION
from tests.support.cases import for_each

COLUMNS = UTILIZATION.columns
WAIT = COLUMNS.index("input_wait_ratio")


def rows(count: int, seed: int = 0, wait_max: float = 0.8) -> FeatureArray:
    """Every second job waits."""
    random = np.random.default_rng(seed)
    found = random.uniform(0.0, 1.0, (count, len(COLUMNS)))
    found[:, WAIT] = np.where(np.arange(count) % 2, random.uniform(0.1, wait_max, count), 0.0)
    return found.astype(np.float32)


def share(features: FeatureArray, factor: float | FloatArray) -> FloatArray:
    """Of the time that is stated for computing, by its definition: computing takes so many times as long."""
    wait = features[:, WAIT].astype(np.float64)
    computing = factor * (1.0 - wait)
    return np.asarray(computing / (computing + wait) / (1.0 - wait))


@for_each("factor", [0.5, 1.0, 1.1, 3.0])
def test_jobs_whose_computing_takes_longer_than_stated_teach_by_how_much(factor: float) -> None:
    found = WaitingLaw(COLUMNS).fit(rows(20), share(rows(20), factor))
    assert found.predict(rows(30, seed=1)) == pytest.approx(share(rows(30, seed=1), factor), abs=1e-6)


def test_a_few_disturbed_runs_do_not_move_the_law() -> None:
    measured = share(rows(40), 1.1)
    measured[[1, 7, 21]] *= 0.3
    found = WaitingLaw(COLUMNS).fit(rows(40), measured).predict(rows(30, seed=1))
    assert found == pytest.approx(share(rows(30, seed=1), 1.1), abs=1e-6)


def test_jobs_without_waits_teach_nothing_and_jobs_that_wait_are_then_answered_as_stated() -> None:
    found = WaitingLaw(COLUMNS).fit(rows(20, wait_max=0.1)[::2], np.full(10, 0.97))
    assert found.predict(rows(30, seed=1)) == pytest.approx(1.0)


def test_a_longer_wait_never_uses_more_of_the_device() -> None:
    asked = np.repeat(rows(1), 50, axis=0)
    asked[:, WAIT] = np.linspace(0.0, 0.99, 50)
    utilization = WaitingLaw(COLUMNS).fit(rows(20), share(rows(20), 1.3)).predict(asked) * (1.0 - asked[:, WAIT])
    assert utilization[0] == pytest.approx(1.0)
    assert np.all(np.diff(utilization) < 0)


def test_the_law_is_served_as_a_file_that_answers_alike() -> None:
    model = WaitingLaw(COLUMNS).fit(rows(20), share(rows(20), 1.3))
    content = prove(model.to_onnx, golden_of(rows(20), model.predict), WAITING)
    assert OnnxModel(content).predict(rows(30, seed=1)) == pytest.approx(model.predict(rows(30, seed=1)), abs=1e-5)
    assert content == model.to_onnx()


def test_the_law_stays_where_no_candidate_is_better_beyond_chance() -> None:
    incumbent = incumbent_of(UTILIZATION, STANDIN_DEVICE, [frozenset({"family"})], is_of_all_types=False)
    assert incumbent is not None
    assert incumbent.name == WAITING
    assert WAITING in list_candidates(UTILIZATION, STANDIN_DEVICE, is_public=False, is_of_all_types=False)


@for_each("seed", [0, 1])
def test_shares_that_follow_the_law_are_answered_by_it_whatever_the_seed(seed: int) -> None:
    columns, random = rows(48), np.random.default_rng(5)
    shares = share(columns, 1.08 * np.exp(random.normal(0.0, 0.02, len(columns))))
    ceilings = 1.0 - columns[:, WAIT].astype(np.float64)
    fitted = fit_target(
        FittingTask(
            target=UTILIZATION,
            device=STANDIN_DEVICE,
            columns=columns,
            measured=shares * ceilings,
            analytical_estimate=ceilings,
            groups=[frozenset({f"family {row // 4}"}) for row in range(len(columns))],
            seed=seed,
        )
    )
    assert fitted.selected == WAITING
