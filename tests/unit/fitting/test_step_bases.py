"""Step times are learned relative to the device's peaks or to the model of all device types, whichever errs less."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import SoloRow
from predictor_service.commands.predict import open_predictor
from predictor_service.cross_device.step_model import FOLDS, fold_of_family, load_step_folds, load_step_model
from predictor_service.cross_device.step_physics import StepKind
from predictor_service.cross_device.step_work import work_of_facts
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.fitting import competition
from predictor_service.fitting.fit import FittedTarget, fit_rows
from predictor_service.fitting.step_bases import choose_basis, unseen_step_ms
from predictor_service.importers.zoo_features import ZooFeatures
from predictor_service.inference.records import JobQuestion, Level
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.manifest import OF_ALL_TYPES, OF_DEVICE, Manifest
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES, UNCORRECTED
from predictor_service.retraining.batch_check import find_contradictions
from predictor_service.retraining.datasets import read_dataset, read_datasets
from predictor_service.retraining.training import LEVEL, train_version
from predictor_service.selection.targets import MEMORY, STEP
from tests.support.measured_dataset import DEVICE as STANDIN
from tests.support.measured_dataset import graphs, write_dataset
from tests.support.table_dataset import DEVICE, table_rows, write_table_dataset

SLOWER = 1.3


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("constant_correction", "ridge")
    monkeypatch.setattr(competition, "CANDIDATES", {name: CANDIDATES[name] for name in names})


def rows_as_all_types_say(seed: int = 0) -> list[SoloRow]:
    """Rows of a card that takes 1.3 times what the model of all types says, with 2 % of noise."""
    random, known, rows = np.random.default_rng(seed), ZooFeatures.load(), []
    kind = StepKind(device=DEVICE_TYPES[DEVICE], precision="fp32", is_training=True, optimizer_slots=2.0)
    for row in table_rows():
        work = work_of_facts([(dict(known.of(row.architecture) or {}), row.batch)])
        assert work is not None
        step_ms = SLOWER * float(load_step_model().time_ms(work, [kind])[0]) * np.exp(0.02 * random.standard_normal())
        rows.append(dataclasses.replace(row, step_ms_mean=float(step_ms)))
    return rows


def learning_task(folder: Path, rows: list[SoloRow]) -> LearningTask:
    write_table_dataset(folder, rows)
    return read_learning_task(read_profiles(folder), STEP, DEVICE).learning_task


def fitted(folder: Path, rows: list[SoloRow]) -> FittedTarget:
    return fit_rows(learning_task(folder, rows), LEVEL, seed=0)


def test_rows_that_all_other_types_explain_are_learned_relative_to_their_model(tmp_path: Path) -> None:
    basis = fitted(tmp_path / "set", rows_as_all_types_say()).record.basis
    assert basis is not None
    assert basis.name == OF_ALL_TYPES
    assert basis.errors[OF_ALL_TYPES] < 0.5 * basis.errors[OF_DEVICE]


def test_rows_that_their_own_peaks_explain_better_are_learned_relative_to_these(tmp_path: Path) -> None:
    basis = fitted(tmp_path / "set", table_rows()).record.basis
    assert basis is not None
    assert basis.name == OF_DEVICE
    assert basis.errors[OF_DEVICE] < basis.errors[OF_ALL_TYPES]


def test_rows_that_teach_nothing_new_are_answered_by_the_model_of_all_types_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other family is slower, every other one faster: of the next one that says nothing."""
    monkeypatch.setattr(competition, "CANDIDATES", {"constant_correction": CANDIDATES["constant_correction"]})
    plain, rows = rows_as_all_types_say(), []
    families = sorted({row.family for row in plain})
    for row in plain:
        factor = 1.4 if families.index(row.family) % 2 else 1 / 1.4
        rows.append(dataclasses.replace(row, step_ms_mean=(row.step_ms_mean or 0.0) / SLOWER * factor))
    found = fitted(tmp_path / "set", rows)
    assert found.record.basis is not None
    assert found.record.basis.name == OF_ALL_TYPES
    assert found.selected == f"{UNCORRECTED} of {OF_ALL_TYPES}"
    task = learning_task(tmp_path / "again", rows)
    assert found.predict(task).value == pytest.approx(unseen_step_ms(task), rel=1e-5)


def test_processors_and_other_targets_have_one_basis_and_are_learned_once(tmp_path: Path) -> None:
    write_dataset(tmp_path / "standin")
    write_table_dataset(tmp_path / "table")
    standin, table = (train_version([read_dataset(tmp_path / name)], seed=0).manifest for name in ("standin", "table"))
    assert standin.targets[STANDIN][STEP.name].basis is None
    assert table.targets[DEVICE][STEP.name].basis is not None
    assert table.targets[DEVICE][MEMORY.name].basis is None


def test_a_row_is_judged_by_a_model_that_has_not_seen_its_family_anywhere(tmp_path: Path) -> None:
    rows = learning_task(tmp_path / "set", table_rows())
    unseen, served = unseen_step_ms(rows), []
    assert unseen is not None
    for place, job in enumerate(rows.jobs):
        work = work_of_facts([(job.graph, job.batch)])
        assert work is not None
        kind = StepKind(device=DEVICE_TYPES[DEVICE], precision="fp32", is_training=True, optimizer_slots=2.0)
        model = load_step_folds()[fold_of_family(job.family)]
        assert unseen[place] == pytest.approx(float(model.time_ms(work, [kind])[0]))
        served.append(float(load_step_model().time_ms(work, [kind])[0]))
    assert not np.allclose(unseen, served, rtol=1e-3)
    assert {fold_of_family(f"family{number}") for number in range(40)} == set(range(FOLDS))


def test_a_service_answers_relative_to_what_was_chosen_and_says_so(tmp_path: Path) -> None:
    """The graph comes as a file, the rows came as figures: both are asked of the same model."""
    write_table_dataset(tmp_path / "set", rows_as_all_types_say())
    (tmp_path / "untrained").mkdir()
    store = VersionStore(tmp_path / "trained" / "models")
    trained = train_version([read_dataset(tmp_path / "set")], seed=0)
    store.add(trained.manifest, trained.files)
    store.activate(trained.manifest.version)
    question = JobQuestion(
        settings=JobSettings(global_batch_size=16, optimizer="adam"),
        device=DEVICE,
        onnx_graph=graphs()["wide"],
        explain=True,
    )
    of_all_types, answer = (open_predictor(tmp_path / name).predict_job(question) for name in ("untrained", "trained"))
    assert answer.step_ms.level is Level.GRAPH
    assert answer.step_ms.value == pytest.approx(SLOWER * of_all_types.step_ms.value, rel=0.15)
    assert sum(each.contribution for each in answer.step_ms.explanation) == pytest.approx(answer.step_ms.value)
    said = {notice.code: notice.message for notice in answer.warnings}["STEP_TIME_MODEL"]
    assert "relative to the model of all device types" in said
    assert said.removeprefix("step time: l") in store.card(trained.manifest.version)


def test_more_rows_of_the_same_kind_do_not_contradict_a_model_relative_to_all_types(tmp_path: Path) -> None:
    """They are judged by what a service answers, which is not relative to the device's own peaks."""
    write_table_dataset(tmp_path / "sets" / "first", rows_as_all_types_say())
    store = VersionStore(tmp_path / "models")
    trained = train_version(read_datasets(tmp_path / "sets"), seed=0)
    store.add(trained.manifest, trained.files)
    new = [
        dataclasses.replace(row, campaign="second", run_id=f"second-{row.run_id}")
        for row in rows_as_all_types_say(seed=1)
    ]
    write_table_dataset(tmp_path / "sets" / "second", new)
    champion = store.load(trained.manifest.version)
    assert champion.devices[DEVICE][STEP.name].is_of_all_types
    assert find_contradictions(read_datasets(tmp_path / "sets"), champion, trained.held_out) == []
    slower = [dataclasses.replace(row, step_ms_mean=10 * (row.step_ms_mean or 0.0)) for row in new]
    shutil.rmtree(tmp_path / "sets" / "second")
    write_table_dataset(tmp_path / "sets" / "second", slower)
    assert find_contradictions(read_datasets(tmp_path / "sets"), champion, trained.held_out)


def test_a_manifest_keeps_what_was_chosen_and_one_without_any_keeps_its_name(tmp_path: Path) -> None:
    write_table_dataset(tmp_path / "set", rows_as_all_types_say())
    manifest = train_version([read_dataset(tmp_path / "set")], seed=0).manifest
    again = Manifest.from_json(manifest.to_json())
    assert again.targets[DEVICE][STEP.name].basis == manifest.targets[DEVICE][STEP.name].basis
    assert "basis" not in json.loads(manifest.to_json())["targets"][DEVICE][MEMORY.name]


def test_own_peaks_that_err_less_on_one_family_alone_do_not_displace_the_model_of_all_types() -> None:
    groups = [frozenset({f"family{number}"}) for number in range(4)]
    all_types = np.array([0.9, 0.2, 0.2, 0.2])
    by_chance = choose_basis(of_device=np.array([0.1, 0.3, 0.3, 0.3]), of_all_types=all_types, groups=groups)
    on_all = choose_basis(of_device=np.array([0.5, 0.1, 0.1, 0.1]), of_all_types=all_types, groups=groups)
    assert by_chance.name == OF_ALL_TYPES
    assert by_chance.errors[OF_DEVICE] < by_chance.errors[OF_ALL_TYPES]
    assert on_all.name == OF_DEVICE
