"""What `evaluate --model fresh` learns is what `retrain` stores: one function, one answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from predictor_service.evaluation.stored_model import StoredModel
from predictor_service.fitting import fit
from predictor_service.fitting.methods import FittingMethod
from predictor_service.learning.problem import Problem
from predictor_service.learning.problem_reader import read_problem
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.training import LEVEL, train_version
from predictor_service.selection.targets import SLOWDOWN, TARGETS, Target
from tests.support.measured_dataset import DEVICE, write_dataset


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("constant_correction", "ridge", "extra_trees")
    monkeypatch.setattr(fit, "CANDIDATES", {name: CANDIDATES[name] for name in names})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def stored(folder: Path, tmp_path: Path) -> VersionStore:
    trained = train_version([read_dataset(folder)], seed=0)
    store = VersionStore(tmp_path / "models")
    store.add(trained.manifest, trained.files)
    store.activate(trained.manifest.version)
    return store


def rows_of(folder: Path, target: Target) -> Problem:
    return read_problem(read_profiles(folder), target, DEVICE).problem


def test_evaluation_and_retraining_of_the_same_rows_give_equal_answers(folder: Path, stored: VersionStore) -> None:
    version = stored.load(stored.current() or "")
    names = version.devices[DEVICE]
    assert {SLOWDOWN.name, "memory_bytes"} <= set(names)
    for target in (target for target in TARGETS if target.name in names):
        problem = rows_of(folder, target)
        fresh = FittingMethod(LEVEL).fit(problem, seed=0)
        kept = StoredModel(version, target, DEVICE)
        assert fresh.selected == kept.selected
        assert list(fresh.candidates) == list(kept.candidates)
        answered, served = fresh.predict(problem), kept.predict(problem)
        for field in dataclasses.fields(served):
            assert np.array_equal(getattr(answered, field.name), getattr(served, field.name)), field.name


def test_what_is_learned_does_not_depend_on_the_order_of_the_rows(folder: Path) -> None:
    problem = rows_of(folder, SLOWDOWN)
    turned = problem.subset(range(len(problem) - 1, -1, -1))
    first, second = (FittingMethod(LEVEL).fit(each, seed=0).predict(problem) for each in (problem, turned))
    assert np.array_equal(first.value, second.value)


def test_a_row_that_a_service_could_not_answer_is_answered_apart_and_never_familiar(folder: Path) -> None:
    problem = rows_of(folder, TARGETS[2])
    blind = dataclasses.replace(problem.jobs[0], graph={})
    mixed = dataclasses.replace(problem, jobs=(blind, *problem.jobs[1:]))
    fitted = FittingMethod(LEVEL).fit(mixed, seed=0)
    known, all_rows = fitted.predict(problem.subset(range(1, len(problem)))), fitted.predict(mixed)
    assert np.array_equal(all_rows.value[1:], known.value)
    assert np.isfinite(all_rows.value[0])
    assert not all_rows.in_domain[0]
