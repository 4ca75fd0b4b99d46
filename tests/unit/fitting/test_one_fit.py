"""What `evaluate --model fresh` learns is what `retrain` stores: one function, one answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from predictor_service.evaluation import fresh_model
from predictor_service.evaluation.fresh_model import FittingMethod
from predictor_service.evaluation.stored_model import StoredModel
from predictor_service.fitting import competition, fit, learnable_rows
from predictor_service.fitting.known_rows import split_learnable
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.served_version import ServedVersion
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.training import LEVEL, train_version
from predictor_service.selection.targets import SLOWDOWN, STEP, TARGETS, Target
from tests.support.few_candidates import few_candidates
from tests.support.measured_dataset import DEVICE, write_dataset
from tests.support.table_dataset import DEVICE as TABLE_DEVICE
from tests.support.table_dataset import table_rows, write_table_dataset


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with few_candidates():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set")
    return tmp_path / "set"


def version_of(folder: Path, models: Path) -> ServedVersion:
    """What `retrain` stores of a set, as a service loads it."""
    trained = train_version([read_dataset(folder)], seed=0)
    store = VersionStore(models)
    store.add(trained.manifest, trained.files)
    return store.load(trained.manifest.version)


def rows_of(folder: Path, target: Target, device: str = DEVICE) -> LearningTask:
    return read_learning_task(read_profiles(folder), target, device).learning_task


def check_both_ways(version: ServedVersion, folder: Path, device: str) -> None:
    """Fits every target of the version as `evaluate --model fresh` does; both must answer alike."""
    names = version.devices[device]
    for target in (target for target in TARGETS if target.name in names):
        learning_task = rows_of(folder, target, device)
        fresh = FittingMethod(LEVEL).fit(learning_task, seed=0)
        kept = StoredModel(version, target, device)
        assert fresh.selected == kept.selected
        assert list(fresh.candidates) == list(kept.candidates)
        answered, served = fresh.predict(learning_task), kept.predict(learning_task)
        for field in dataclasses.fields(served):
            assert np.array_equal(getattr(answered, field.name), getattr(served, field.name)), field.name


def test_evaluation_and_retraining_of_the_same_rows_give_equal_answers(folder: Path, tmp_path: Path) -> None:
    version = version_of(folder, tmp_path / "models")
    assert {SLOWDOWN.name, "memory_bytes"} <= set(version.devices[DEVICE])
    check_both_ways(version, folder, DEVICE)


def test_rows_that_a_service_answers_never_come_to_the_method_that_is_not_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Target] = []
    described_method = fresh_model.described_method

    def noted(target: Target, level: str) -> object:
        asked.append(target)
        return described_method(target, level)

    monkeypatch.setattr(fresh_model, "described_method", noted)
    learning_task = rows_of(folder, STEP)
    blind = dataclasses.replace(learning_task.jobs[0], graph={})
    fitted = FittingMethod(LEVEL).fit(learning_task, seed=0)
    fitted.predict(learning_task)
    assert asked == []
    fitted.predict(dataclasses.replace(learning_task, jobs=(blind, *learning_task.jobs[1:])))
    assert asked == [STEP]


def test_a_public_table_with_a_failed_run_and_more_rows_than_are_drawn_is_learned_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, *others = table_rows()
    rows = [dataclasses.replace(failed, memory_peak_bytes=1 << 20), *others]
    write_table_dataset(tmp_path / "set", rows)
    monkeypatch.setattr(learnable_rows, "TABLE_ROWS_MAX", len(rows) - 5)
    version = version_of(tmp_path / "set", tmp_path / "models")
    assert {"memory_bytes", "step_ms"} <= set(version.devices[TABLE_DEVICE])
    assert version.manifest.targets[TABLE_DEVICE]["memory_bytes"].rows < len(rows) - 1
    check_both_ways(version, tmp_path / "set", TABLE_DEVICE)


def test_what_is_learned_does_not_depend_on_the_order_of_the_rows(folder: Path) -> None:
    learning_task = rows_of(folder, SLOWDOWN)
    turned = learning_task.subset(range(len(learning_task) - 1, -1, -1))
    first, second = (FittingMethod(LEVEL).fit(each, seed=0).predict(learning_task) for each in (learning_task, turned))
    assert np.array_equal(first.value, second.value)


def test_a_row_that_a_service_could_not_answer_is_answered_apart_and_never_familiar(folder: Path) -> None:
    learning_task = rows_of(folder, STEP)
    blind = dataclasses.replace(learning_task.jobs[0], graph={})
    mixed = dataclasses.replace(learning_task, jobs=(blind, *learning_task.jobs[1:]))
    fitted = FittingMethod(LEVEL).fit(mixed, seed=0)
    known, all_rows = fitted.predict(learning_task.subset(range(1, len(learning_task)))), fitted.predict(mixed)
    assert np.array_equal(all_rows.value[1:], known.value)
    assert np.isfinite(all_rows.value[0])
    assert not all_rows.in_domain[0]


@pytest.mark.parametrize(
    "figures",
    [{"roofline_ms": 3.0}, {"roofline_ms": float("nan")}, {"analytical_memory_bytes": 0.0}],
    ids=["one figure of a graph", "no number", "no physics"],
)
def test_a_table_that_publishes_figures_of_a_graph_by_our_names_is_not_taken_for_one(
    folder: Path, figures: dict[str, float]
) -> None:
    learning_task = rows_of(folder, STEP)
    known = {} if figures == {"roofline_ms": 3.0} else learning_task.jobs[0].graph
    odd = dataclasses.replace(learning_task.jobs[0], graph={**known, **figures})
    mixed = dataclasses.replace(learning_task, jobs=(odd, *learning_task.jobs[1:]))
    assert len(split_learnable(mixed)[0]) == len(learning_task) - 1
    answered = FittingMethod(LEVEL).fit(mixed, seed=0).predict(mixed)
    assert np.isfinite(answered.value).all()
    assert not answered.in_domain[0]


def test_a_row_of_a_device_type_that_nothing_was_learned_from_is_answered_apart(folder: Path) -> None:
    """A service falls back there; what it learned of one device type answers no other."""
    learning_task = rows_of(folder, STEP)
    fitted = FittingMethod(LEVEL).fit(learning_task, seed=0)
    elsewhere = dataclasses.replace(learning_task.jobs[0], device="NVIDIA A100-SXM4-40GB")
    asked = dataclasses.replace(learning_task, jobs=(elsewhere, *learning_task.jobs[1:]))
    assert fitted.predict(learning_task).in_domain[0]
    assert not fitted.predict(asked).in_domain[0]


def test_a_job_that_waits_for_input_all_the_time_teaches_no_service(folder: Path) -> None:
    learning_task = rows_of(folder, STEP)
    waiting = dataclasses.replace(learning_task.jobs[0], input_wait_ratio=1.0)
    left, reasons = split_learnable(dataclasses.replace(learning_task, jobs=(waiting, *learning_task.jobs[1:])))
    assert len(left) == len(learning_task) - 1
    assert sum(reasons.values()) == 1


def test_a_victim_of_two_co_located_jobs_is_answered_by_its_pairs(folder: Path) -> None:
    learning_task = rows_of(folder, SLOWDOWN)
    fitted = FittingMethod(LEVEL).fit(learning_task, seed=0)
    pair = learning_task.subset([0])
    multiway = dataclasses.replace(pair, others=((*pair.others[0], *pair.others[0]),))
    alone, co_located = fitted.predict(pair), fitted.predict(multiway)
    assert co_located.value[0] >= 2.0 * alone.value[0] - 1e-9
    assert co_located.lower_90[0] <= co_located.value[0] <= co_located.upper_90[0] <= co_located.upper_99[0]


def test_what_answers_thousands_of_pairs_at_once_is_a_small_forest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competition, "CANDIDATES", {"extra_trees": CANDIDATES["extra_trees"]})
    sizes = {target: _bytes_of_model(rows_of(folder, target)) for target in (SLOWDOWN, STEP)}
    monkeypatch.setattr(competition, "FASTER_FOR_PAIRS", {})
    assert _bytes_of_model(rows_of(folder, SLOWDOWN)) > 2 * sizes[SLOWDOWN]
    assert _bytes_of_model(rows_of(folder, STEP)) == sizes[STEP]


def _bytes_of_model(learning_task: LearningTask) -> int:
    fitted = fit.fit_rows(learning_task, LEVEL, seed=0)
    return len(fitted.files[fitted.record.file_name])
