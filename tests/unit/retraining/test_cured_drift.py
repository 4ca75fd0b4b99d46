"""An alarm of a device that changed is cured by what was measured since; wrong labels and operators stop it."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cotenant.profile_schema import PairRow, SoloRow, read_rows, write_rows
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.fitting.answers import forecast_known
from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry
from predictor_service.profile_store.measurement_window import MeasuredJob
from predictor_service.profile_store.store import ProfileStore
from predictor_service.registry.manifest import seal
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining import retraining_run
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.drift import ROWS_MIN, read_drift
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.retraining.retraining_run import MEANWHILE, RetrainingOutcome, RetrainingPlan, retrain
from predictor_service.retraining.training import TrainedVersion, train, train_version
from predictor_service.selection.targets import MEMORY, STEP, Target
from tests.support.few_candidates import few_candidates
from tests.support.measured_dataset import DEVICE, PAIR_BATCH, job_settings, write_dataset
from tests.support.measurement_windows import window
from tests.support.predictor_service import SEED, trained_store

HOUR_MS = 3_600_000
OTHER = "NVIDIA A100-SXM4-40GB"
Factor = Callable[[int], float]
"""Of a job's step time, by its number."""


def of_other_type(row: SoloRow, factor: float) -> SoloRow:
    step_ms = factor * (row.step_ms_mean or 0.0)
    return dataclasses.replace(row, device=OTHER, run_id=f"{row.run_id}-other", step_ms_mean=step_ms)


def write_other_type(folder: Path, factor: float = 1.0) -> None:
    """A data set of a third of the same jobs on another device type."""
    write_dataset(folder, seed=5)
    known = [row for row in read_rows(folder / "solo.csv", SoloRow) if row.batch == PAIR_BATCH]
    rows = [of_other_type(row, factor) for row in known]
    write_rows(folder / "solo.csv", rows, SoloRow)
    write_rows(folder / "pairs.csv", [], PairRow)


class Laboratory:
    """The state of a service, whose days pass without it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        write_dataset(folder / "datasets" / "invented")
        shutil.copytree(trained_store()._versions.parent, self.state / "models")
        write_dataset(folder / "ran", seed=3)
        (self.state / "graphs").mkdir()
        for path in (folder / "ran" / "graphs").iterdir():
            shutil.copy(path, self.state / "graphs")
        self.rows = read_dataset(folder / "ran").solo
        self.days = 0

    def run_for_a_day(self, factor: Factor, busy: Factor = lambda _: 1.0) -> None:
        """Every job runs once an hour, three times, as the set says, times a factor of step time and of utilization."""
        self.days += 1
        for hour in range(3):
            at_ms = (24 * self.days + hour) * HOUR_MS
            windows = []
            for place, row in enumerate(self.rows):
                step_ms = (row.step_ms_mean or 0.0) * factor(place)
                steps = round(20_000 / step_ms)
                windows.append(
                    window(
                        at_ms + place,
                        job=MeasuredJob(
                            graph_sha256=str(row.graph_sha256), settings=job_settings(row.family, row.batch)
                        ),
                        micro_batch_size=row.batch,
                        steps=steps,
                        window_ms=round(steps * step_ms),
                        utilization_ratio=(row.utilization_ratio or 0.0) * busy(place),
                        memory_peak_bytes=row.memory_peak_bytes,
                    )
                )
            with closing(ProfileStore(self.state / "profiles.sqlite", days=36_500)) as store:
                assert store.add(windows, at_ms).recorded == len(windows)

    def raise_alarm(self) -> None:
        """Outcomes outside their intervals, as many as an alarm takes."""
        version = VersionStore(self.state / "models").current()
        with closing(OutcomeJournal(self.state / "journal.sqlite")) as journal:
            names = [f"{version}-{number}" for number in range(ROWS_MIN)]
            for name in names:
                journal.remember(_prediction(name, str(version)))
            journal.record([(name, {"step_ms_mean": 50.0}) for name in names], at_ms=1)
        assert read_drift(self.state / "journal.sqlite").is_alarming

    @contextmanager
    def registry(self) -> Iterator[ModelRegistry]:
        with closing(ModelRegistry(self.state / "models", "a test")) as registry:
            yield registry

    def learn(self, *devices: str) -> tuple[RetrainingOutcome, str]:
        plan = RetrainingPlan(
            state_dir=self.state,
            datasets=self.folder / "datasets",
            from_outcomes=True,
            devices=devices,
            seed=SEED,
            why="a test",
        )
        with few_candidates(), self.registry() as registry:
            result = retrain(plan, registry, lambda line: None)
        return result.outcome, "; ".join(result.why)

    def median_ratio(self, target: Target) -> float:
        """Predicted over measured of the jobs as they ran at first, over all of them."""
        store = VersionStore(self.state / "models")
        rows = select_rows([read_dataset(self.folder / "ran")], target, DEVICE_TYPES[DEVICE]).learned
        model = store.load(str(store.current())).devices[DEVICE][target.name]
        ratios = sorted((forecast_known(model, rows).value / rows.measured).tolist())
        return float(ratios[len(ratios) // 2])


def _prediction(name: str, version: str) -> PredictionEntry:
    content = {
        "utilization_ratio": 0.5,
        "memory_bytes": 1000.0,
        "step_ms": 10.0,
        "intervals": [[0.4, 0.6], [800.0, 1200.0], [8.0, 12.0]],
        "confidence": 0.9,
    }
    return PredictionEntry(
        prediction_id=name, at_ms=1, kind="job", device=DEVICE, model_version=version, content=content
    )


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def as_ever(_: int) -> float:
    return 1.0


def slower(_: int) -> float:
    return 1.6


def with_other_type(laboratory: Laboratory) -> None:
    """Lets the laboratory serve another device type as well."""
    write_other_type(laboratory.folder / "datasets" / "other")
    shutil.rmtree(laboratory.state / "models")
    with few_candidates():
        train(laboratory.folder / "datasets", VersionStore(laboratory.state / "models"), SEED)


def fifth_wrong(place: int) -> float:
    return 3.0 if place % 5 == 0 else 1.0


def test_a_slower_device_is_learned_since_its_day_and_what_follows_is_judged_by_that(laboratory: Laboratory) -> None:
    with_other_type(laboratory)
    write_other_type(laboratory.folder / "datasets" / "poisoned", factor=50.0)  # is not looked at for this alarm
    with laboratory.registry() as registry:
        first = registry.store.manifest(str(registry.store.current()))
    for factor in (as_ever, slower):
        laboratory.run_for_a_day(factor)
    laboratory.raise_alarm()
    outcome, why = laboratory.learn(DEVICE)
    assert outcome is RetrainingOutcome.PROMOTED, why
    assert "step_ms: 1.6" in why
    assert laboratory.median_ratio(STEP) == pytest.approx(1.6, rel=0.05)
    assert laboratory.median_ratio(MEMORY) == pytest.approx(1.0, rel=0.05)
    with laboratory.registry() as registry:
        second = registry.store.manifest(str(registry.store.current()))
    (change,) = second.changes
    assert (change.device, change.target, change.at_ms) == (DEVICE, STEP.name, 2 * 24 * HOUR_MS)
    assert change.shift == pytest.approx(math.log(1.6), abs=0.03)
    hashes = [{name: record.file_sha256 for name, record in each.targets[OTHER].items()} for each in (first, second)]
    assert hashes[0] == hashes[1]

    shutil.rmtree(laboratory.folder / "datasets" / "poisoned")
    laboratory.run_for_a_day(slower)
    outcome, why = laboratory.learn()
    assert outcome is RetrainingOutcome.PROMOTED, why
    with laboratory.registry() as registry:
        assert registry.store.manifest(str(registry.store.current())).changes == (change,)
        assert registry.roll_back("a test") == second.version
        assert registry.roll_back("a test") == first.version
    assert laboratory.median_ratio(STEP) == pytest.approx(1.0, rel=0.05)


def test_what_jobs_do_not_share_stays_as_it_is_served_and_keeps_nothing_else_from_being_learned(
    laboratory: Laboratory,
) -> None:
    with laboratory.registry() as registry:
        first = registry.store.manifest(str(registry.store.current()))
    laboratory.run_for_a_day(slower, busy=lambda place: 0.5 if place % 3 == 0 else 1.0)
    laboratory.raise_alarm()
    outcome, why = laboratory.learn(DEVICE)
    assert outcome is RetrainingOutcome.PROMOTED, why
    assert f"as served: {DEVICE}, utilization_ratio: 6 of 6 new rows contradict" in why  # others measured as before
    with laboratory.registry() as registry:
        second = registry.store.manifest(str(registry.store.current()))
    records = [manifest.targets[DEVICE]["utilization_ratio"] for manifest in (first, second)]
    assert (records[0].file_sha256, records[0].rows) == (records[1].file_sha256, records[1].rows)
    assert laboratory.median_ratio(STEP) == pytest.approx(1.6, rel=0.05)
    assert [change.target for change in second.changes] == [STEP.name]


def test_a_fifth_of_the_labels_three_times_too_large_is_refused_although_an_alarm_is_on(
    laboratory: Laboratory,
) -> None:
    for factor in (as_ever, fifth_wrong, fifth_wrong):
        laboratory.run_for_a_day(factor)
    laboratory.raise_alarm()
    outcome, why = laboratory.learn(DEVICE)
    assert outcome is RetrainingOutcome.REFUSED
    assert "step_ms: 4 of 18 new rows contradict" in why
    assert laboratory.median_ratio(STEP) == pytest.approx(1.0, rel=0.05)


def test_jobs_that_run_every_day_are_learned_anew_every_day_without_any_data_set(laboratory: Laboratory) -> None:
    shutil.rmtree(laboratory.folder / "datasets")
    (laboratory.folder / "datasets").mkdir()
    shutil.rmtree(laboratory.state / "models")
    for day in range(2):
        laboratory.run_for_a_day(lambda place, day=day: 1 + 0.03 * ((place + day) % 3))  # type: ignore[misc]
        outcome, why = laboratory.learn()
        assert outcome is RetrainingOutcome.PROMOTED, why


def test_a_rollback_during_a_retraining_is_not_undone_by_it(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with laboratory.registry() as registry:
        store = registry.store
        served = str(store.current())
        again = seal(dataclasses.replace(store.manifest(served), version="", seed=99))
        folder = store.folder(served)
        registry.add(again, {path.name: path.read_bytes() for path in folder.iterdir()}, "a test")
        registry.promote(again.version, "a test")

    def train_while_an_operator_rolls_back(*arguments: object, **named: object) -> TrainedVersion:
        with laboratory.registry() as registry:
            registry.roll_back("it is worse")
        return train_version(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(retraining_run, "train_version", train_while_an_operator_rolls_back)
    laboratory.run_for_a_day(as_ever)
    assert laboratory.learn() == (RetrainingOutcome.REFUSED, MEANWHILE)
    with laboratory.registry() as registry:
        assert registry.was_rolled_back()
