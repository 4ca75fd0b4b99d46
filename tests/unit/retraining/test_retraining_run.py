"""A retraining promotes what is not worse, and refuses poisoned data, leaving the served version as it was."""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.profile_schema import PairRow, SoloRow, read_rows, write_rows
from predictor_service.commands.train import make_first_version
from predictor_service.errors import RetrainingBusyError, TrainingDataError
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_history import VersionAction
from predictor_service.retraining import retraining_run
from predictor_service.retraining.batch_check import find_contradictions
from predictor_service.retraining.datasets import read_datasets
from predictor_service.retraining.retraining_run import RetrainingOutcome, RetrainingPlan, RetrainingResult, retrain
from predictor_service.settings import Settings
from tests.support.measured_dataset import write_dataset

SEED = 7
Change = Callable[[SoloRow, int], SoloRow]


def quiet(line: str) -> None:
    assert line


def write_batch(folder: Path, change: Change, seed: int = 1) -> None:
    """Writes measurements of the same kinds of jobs by another campaign, each row changed."""
    write_dataset(folder, seed=seed)
    solo = [
        change(dataclasses.replace(row, campaign=folder.name, run_id=f"{folder.name}-{place}"), place)
        for place, row in enumerate(read_rows(folder / "solo.csv", SoloRow))
    ]
    write_rows(folder / "solo.csv", solo, SoloRow)
    write_rows(folder / "pairs.csv", [], PairRow)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with one served version, and the data set that it was trained on."""
    root = tmp_path_factory.mktemp("served")
    write_dataset(root / "datasets" / "first")
    result = run(root)
    assert result.outcome is RetrainingOutcome.PROMOTED
    assert result.why == ["the first version"]
    return root


@contextmanager
def registry_of(root: Path) -> Iterator[ModelRegistry]:
    registry = ModelRegistry(root / "state" / "models", "a test")
    try:
        yield registry
    finally:
        registry.close()


def run(root: Path, seed: int = SEED) -> RetrainingResult:
    plan = RetrainingPlan(state_dir=root / "state", datasets=root / "datasets", seed=seed, why="a test")
    with registry_of(root) as registry:
        return retrain(plan, registry, quiet)


@pytest.fixture
def root(served: Path, tmp_path: Path) -> Path:
    shutil.copytree(served, tmp_path / "root")
    return tmp_path / "root"


def unchanged(row: SoloRow, place: int) -> SoloRow:
    return row


def scaled(factor: float, every: int = 1) -> Change:
    def change(row: SoloRow, place: int) -> SoloRow:
        if place % every or row.step_ms_mean is None:
            return row
        step_ms = row.step_ms_mean * factor
        return dataclasses.replace(row, step_ms_mean=step_ms, step_ms_p50=step_ms, step_ms_p95=step_ms)

    return change


def memory_in_mebibytes(row: SoloRow, place: int) -> SoloRow:
    return dataclasses.replace(row, memory_peak_bytes=(row.memory_peak_bytes or 0) >> 20)


def memory_in_kibibytes(row: SoloRow, place: int) -> SoloRow:
    return dataclasses.replace(row, memory_peak_bytes=(row.memory_peak_bytes or 0) >> 10)


def weak_utilization(row: SoloRow, place: int) -> SoloRow:
    return dataclasses.replace(row, utilization_ratio=(row.utilization_ratio or 0) * 0.3)


def test_more_sound_rows_are_promoted(root: Path) -> None:
    write_batch(root / "datasets" / "second", unchanged)
    result = run(root)
    assert result.outcome is RetrainingOutcome.PROMOTED, result.why
    assert result.served == result.version
    assert all(comparison.rows for comparison in result.comparisons)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (scaled(10.0), "factor of 10"),
        (scaled(1e-3), "seconds given as milliseconds"),
        (scaled(10.0, every=4), "contradict"),
        (scaled(1000.0, every=18), "factor of"),
        (memory_in_mebibytes, "MB or MiB given as bytes"),
        (weak_utilization, "utilization_ratio"),
        (unchanged, ""),
    ],
    ids=["all x 10", "unit confused", "a quarter x 10", "one x 1000", "memory in MiB", "utilization x 0.3", "sound"],
)
def test_new_rows_that_contradict_what_is_known_are_named(root: Path, change: Change, named: str) -> None:
    write_batch(root / "datasets" / "second", change)
    with registry_of(root) as registry:
        name = registry.store.current()
        assert name is not None
        objections = find_contradictions(
            read_datasets(root / "datasets"), registry.store.load(name), registry.store.held_out(name)
        )
    assert named in "; ".join(map(str, objections))
    assert bool(objections) == bool(named)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (scaled(1e-3), "seconds given as milliseconds"),
        (scaled(1e3), "microseconds given as milliseconds"),
        (memory_in_mebibytes, "MB or MiB given as bytes"),
        (memory_in_kibibytes, "KiB given as bytes"),
    ],
    ids=["seconds", "microseconds", "memory in MiB", "memory in KiB"],
)
def test_first_rows_of_another_unit_are_refused(tmp_path: Path, change: Change, named: str) -> None:
    write_batch(tmp_path / "datasets" / "mine", change)
    with pytest.raises(TrainingDataError, match=named):
        make_first_version(Settings(state_dir=tmp_path / "state", datasets=tmp_path / "datasets"), quiet)
    result = run(tmp_path)
    assert result.outcome is RetrainingOutcome.REFUSED
    assert named in "; ".join(result.why)
    assert not result.served


def test_a_poisoned_batch_is_refused_and_the_served_version_stays(root: Path) -> None:
    with registry_of(root) as registry:
        before = registry.store.current()
    write_batch(root / "datasets" / "poisoned", scaled(10.0, every=4))
    refused = run(root)
    assert refused.outcome is RetrainingOutcome.REFUSED
    assert "contradict" in "; ".join(refused.why)
    assert refused.served == before
    with registry_of(root) as registry:
        assert registry.store.current() == before
        last = registry.history.events()[-1]
        assert (last.action, last.version) == (VersionAction.REFUSED, refused.version)
        assert "contradict" in last.why
        # An operator may still serve it, and take that back.
        registry.promote(refused.version, "the device was changed")
        assert registry.store.current() == refused.version
        assert registry.roll_back("it was not") == before
        actions = [event.action for event in registry.history.events()]
        assert actions[-2:] == [VersionAction.PROMOTED, VersionAction.ROLLED_BACK]


def test_repeated_runs_are_refused_before_anything_is_trained(root: Path) -> None:
    shutil.copytree(root / "datasets" / "first", root / "datasets" / "copy")
    result = run(root)
    assert result.outcome is RetrainingOutcome.REFUSED
    assert result.version == ""
    assert "appear more than once" in result.why[0]


def test_nothing_new_changes_nothing(root: Path) -> None:
    assert run(root).outcome is RetrainingOutcome.UNCHANGED


def test_learning_the_same_again_mends_a_served_version_that_is_damaged(root: Path) -> None:
    with registry_of(root) as registry:
        served = registry.store.current() or ""
        model = next(registry.store.folder(served).glob("*.onnx"))
    model.write_bytes(b"damaged")
    assert run(root).outcome is RetrainingOutcome.UNCHANGED
    with registry_of(root) as registry:
        assert registry.store.load(served).version == served


def test_a_second_retraining_is_refused_while_one_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_and_ask_again(*arguments: object, **named: object) -> None:
        run(root)

    monkeypatch.setattr(retraining_run, "train_version", train_and_ask_again)
    with pytest.raises(RetrainingBusyError):
        run(root)


def test_without_data_there_is_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError) as refusal:
        run(tmp_path)
    assert refusal.value.remedy


WITHOUT_A_PACKAGE = """
import sys
from predictor_service.commands.program import main
from predictor_service.retraining import retraining_run
retraining_run.read_public_version = lambda: None
sys.exit(main())
"""
"""As this folder's conftest has it in this process."""


def test_same_data_and_seed_give_the_same_bytes_in_another_process(served: Path, tmp_path: Path) -> None:
    """Neither the hash seed of a process nor the number of its threads may decide what is stored."""
    arguments = ["retrain", "--state-dir", str(tmp_path), "--datasets", str(served / "datasets"), "--seed", str(SEED)]
    subprocess.run(
        [sys.executable, "-c", WITHOUT_A_PACKAGE, *arguments],
        check=True,
        capture_output=True,
        timeout=110,
        env={**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    )
    assert content_of(tmp_path) == content_of(served / "state")


def content_of(state: Path) -> dict[str, str]:
    """Hash of every stored file of the served version, by its path."""
    versions = state / "models" / "versions"
    folder = versions / (state / "models" / "current").read_text().strip()
    return {
        str(path.relative_to(versions)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }
