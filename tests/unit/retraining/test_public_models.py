"""Models that come with the program: served from the first start, and replaced by own rows where these know better."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.profile_schema import SoloRow
from predictor_service.commands import train as train_commands
from predictor_service.commands.train import ensure_version, make_first_version
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.fitting.known_rows import name_rows
from predictor_service.registry.held_out import HeldOut, HeldOutRows
from predictor_service.registry.manifest import Manifest, seal
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.public_version import TEACHING_SETS, PackedVersion
from predictor_service.retraining import retraining_run
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.retraining.public_models import PublicTarget, is_better
from predictor_service.retraining.retraining_run import RetrainingOutcome, RetrainingPlan, RetrainingResult, retrain
from predictor_service.selection.targets import MEMORY, STEP
from predictor_service.settings import Settings
from tests.support.measured_dataset import DEVICE as STANDIN
from tests.support.measured_dataset import write_dataset
from tests.support.public_package import SEED, few_candidates, own_rows, packed_version, public_set, standin_datasets
from tests.support.table_dataset import DEVICE, write_table_dataset


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackedVersion]:
    """The program comes with a small package."""
    packed = packed_version()
    monkeypatch.setattr(train_commands, "read_public_version", lambda: packed)
    monkeypatch.setattr(train_commands, "TEACHING_SETS", (*TEACHING_SETS, "others"))
    monkeypatch.setattr(retraining_run, "read_public_version", lambda: packed)
    with few_candidates():
        yield packed


def first_start(state: Path, datasets: Path, seed: int = SEED) -> tuple[str, list[str]]:
    told: list[str] = []
    name = make_first_version(Settings(state_dir=state, datasets=datasets, seed=seed), told.append)
    return name, told


def served(state: Path) -> Manifest:
    registry = ModelRegistry(state / "models", "a test")
    try:
        return registry.store.manifest(registry.store.current() or "")
    finally:
        registry.close()


def retrained(state: Path, folder: Path, rows: list[SoloRow]) -> RetrainingResult:
    write_table_dataset(folder / "own", rows)
    registry = ModelRegistry(state / "models", "a test")
    try:
        return retrain(RetrainingPlan(state_dir=state, datasets=folder), registry, lambda line: None)
    finally:
        registry.close()


def test_a_first_start_takes_over_what_comes_with_the_program(
    tmp_path: Path, package: PackedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_commands, "_train", None)
    name, told = first_start(tmp_path, standin_datasets())
    assert name == package.manifest.version == served(tmp_path).version
    assert told == ["no model yet: taking over the models that come with the program"]
    assert set(served(tmp_path).targets) == {STANDIN, DEVICE}


@pytest.mark.parametrize("what", ["other data", "another seed"])
def test_a_first_start_on_other_data_trains_them_and_keeps_public_models(tmp_path: Path, what: str) -> None:
    datasets = standin_datasets()
    if what == "other data":
        datasets = tmp_path / "sets"
        write_dataset(datasets / "mine", seed=4)
    name, told = first_start(tmp_path / "state", datasets, SEED + (what == "another seed"))
    manifest = served(tmp_path / "state")
    assert manifest.version == name
    assert "training once" in told[0]
    assert [record.is_public for record in manifest.targets[DEVICE].values()] == [True] * len(manifest.targets[DEVICE])
    assert not any(record.is_public for record in manifest.targets[STANDIN].values())


def test_a_retraining_before_the_first_start_keeps_public_models_of_other_device_types(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path / "models", "a test")
    try:
        result = retrain(RetrainingPlan(state_dir=tmp_path, datasets=standin_datasets()), registry, lambda line: None)
    finally:
        registry.close()
    assert (result.outcome, result.why) == (RetrainingOutcome.PROMOTED, ["the first version"])
    assert set(served(tmp_path).targets) == {STANDIN, DEVICE}


def test_rows_of_another_device_leave_public_models_as_they_are(tmp_path: Path) -> None:
    first_start(tmp_path / "state", standin_datasets())
    write_dataset(tmp_path / "sets" / "more", seed=9)
    write_dataset(tmp_path / "sets" / "invented")
    registry = ModelRegistry(tmp_path / "state" / "models", "a test")
    try:
        plan = RetrainingPlan(state_dir=tmp_path / "state", datasets=tmp_path / "sets" / "invented")
        result = retrain(plan, registry, lambda line: None)
    finally:
        registry.close()
    assert result.outcome is RetrainingOutcome.UNCHANGED, result.why
    assert served(tmp_path / "state").targets[DEVICE][MEMORY.name].is_public


def test_labels_that_came_with_the_program_refuse_no_data_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of Gavel's times on a V100 is far from what others teach: every retraining was refused for them."""
    judged: list[HeldOut] = []

    def note(trained: HeldOut, served: HeldOut) -> list[str]:
        judged.append(trained)
        return []

    monkeypatch.setattr(retraining_run, "find_mixed_labels", note)
    first_start(tmp_path / "state", standin_datasets())
    write_dataset(tmp_path / "sets" / "more", seed=9)
    registry = ModelRegistry(tmp_path / "state" / "models", "a test")
    try:
        retrain(RetrainingPlan(state_dir=tmp_path / "state", datasets=tmp_path / "sets"), registry, lambda line: None)
    finally:
        registry.close()
    (found,) = judged
    assert found.get(DEVICE, {}) == {}
    assert found[STANDIN]


def test_own_rows_that_contradict_public_ones_are_learned_from_and_served(tmp_path: Path) -> None:
    """Otherwise nobody whose libraries hold more than others' could ever teach a device that others measured."""
    first_start(tmp_path / "state", standin_datasets())
    result = retrained(tmp_path / "state", tmp_path / "sets", own_rows(memory_factor=2.5))
    assert result.outcome is RetrainingOutcome.PROMOTED, result.why
    records = served(tmp_path / "state").targets[DEVICE]
    assert not records[MEMORY.name].is_public
    assert set(served(tmp_path / "state").targets) == {STANDIN, DEVICE}


def test_own_rows_that_teach_nothing_leave_the_public_models(tmp_path: Path) -> None:
    first_start(tmp_path / "state", standin_datasets())
    few = own_rows(memory_factor=1.0, architectures=1)
    write_dataset(tmp_path / "sets" / "invented")
    result = retrained(tmp_path / "state", tmp_path / "sets", few)
    assert result.outcome is RetrainingOutcome.PROMOTED, result.why
    records = served(tmp_path / "state").targets[DEVICE]
    assert records[MEMORY.name].is_public
    assert records[STEP.name].is_public


@pytest.mark.parametrize(("factor", "stays"), [(1.5, True), (1.0, False)], ids=["errs more", "errs less"])
def test_a_public_model_stays_where_own_rows_teach_what_errs_more_on_themselves(
    package: PackedVersion, tmp_path: Path, factor: float, *, stays: bool
) -> None:
    write_table_dataset(tmp_path / "own", own_rows(memory_factor=1.0))
    datasets = [read_dataset(tmp_path / "own")]
    rows = select_rows(datasets, MEMORY, DEVICE_TYPES[DEVICE]).learned
    own = HeldOutRows(
        row_ids=tuple(name_rows(rows)),
        measured=tuple(rows.measured.tolist()),
        predicted=tuple((factor * rows.measured).tolist()),
        groups=tuple((job.family,) for job in rows.jobs),
    )
    record = package.manifest.targets[DEVICE][MEMORY.name]
    public = PublicTarget(DEVICE, record, package.held_out[DEVICE][MEMORY.name], lambda name: package.files[name])
    assert is_better(public, datasets, own) is stays


def test_of_rows_that_taught_a_public_model_its_error_is_that_of_held_out_families(package: PackedVersion) -> None:
    """It has seen them: what it says of them now is no measure."""
    record, known = package.manifest.targets[DEVICE][MEMORY.name], package.held_out[DEVICE][MEMORY.name]
    own = dataclasses.replace(known, predicted=known.measured)
    worse = dataclasses.replace(known, predicted=tuple(1.01 * value for value in known.measured))
    public = PublicTarget(DEVICE, record, worse, lambda name: package.files[name])
    halfway = dataclasses.replace(own, predicted=tuple(1.005 * value for value in known.measured))
    assert not is_better(public, [public_set()], halfway)


def test_own_models_defend_themselves_once_they_are_served(tmp_path: Path) -> None:
    first_start(tmp_path / "state", standin_datasets())
    assert retrained(tmp_path / "state", tmp_path / "a", own_rows(2.5)).outcome is RetrainingOutcome.PROMOTED
    doubled = retrained(tmp_path / "state", tmp_path / "b", own_rows(25.0))
    assert doubled.outcome is RetrainingOutcome.REFUSED
    assert not served(tmp_path / "state").targets[DEVICE][MEMORY.name].is_public


def test_who_asks_no_service_is_answered_by_what_comes_with_the_program_today(
    tmp_path: Path, package: PackedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = seal(dataclasses.replace(package.manifest, learning_version=package.manifest.learning_version - 1))
    before = dataclasses.replace(package, manifest=older)
    settings, told = Settings(state_dir=tmp_path, datasets=standin_datasets(), seed=SEED), list[str]()
    monkeypatch.setattr(train_commands, "read_public_version", lambda: before)
    ensure_version(settings, told.append)
    assert served(tmp_path).version == older.version != package.manifest.version
    monkeypatch.setattr(train_commands, "read_public_version", lambda: package)
    ensure_version(settings, told.append)
    assert served(tmp_path).version == package.manifest.version
    ensure_version(settings, told.append)
    assert told == [
        "no model yet: taking over the models that come with the program",
        "models of an older program: taking over the models that come with the program",
    ]


def test_what_an_operator_learned_by_older_rules_is_not_replaced_by_what_comes_with_the_program(
    tmp_path: Path, package: PackedVersion
) -> None:
    older = seal(dataclasses.replace(package.manifest, learning_version=package.manifest.learning_version - 1))
    registry = ModelRegistry(tmp_path / "models", "a test")
    registry.add(older, package.files, "learned from own rows")
    registry.promote(older.version, "learned from own rows")
    registry.close()
    ensure_version(Settings(state_dir=tmp_path, datasets=standin_datasets(), seed=SEED), lambda line: None)
    assert served(tmp_path).version == older.version
