"""A device that changed moves all of its jobs alike from one day on; wrong labels do not, and move nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from predictor_service.profile_store.measurement_window import MeasuredJob, StoredMeasurementWindow
from predictor_service.registry.device_change import DeviceChange, change_from_json, restate
from predictor_service.registry.served_version import ServedVersion
from predictor_service.retraining.collected_rows import CollectedProfiles, collect_profiles
from predictor_service.retraining.datasets import Dataset, read_dataset
from predictor_service.retraining.device_changes import FoundChange, alarming_targets, find_changes
from predictor_service.retraining.drift import MEMORY_BOUND, DriftReport, TargetDrift
from predictor_service.retraining.restated_rows import restate_dataset, restate_window
from tests.support.cases import for_each
from tests.support.measured_dataset import DEVICE, job_settings, write_dataset
from tests.support.measurement_windows import window
from tests.support.predictor_service import trained_store

HOUR_MS = 3_600_000
DAYS = 4
ALARM = (DEVICE, "step_ms")


class Ran(NamedTuple):
    """One window: of which job, on which of two machines, and on which day, from 0."""

    job: int
    machine: int
    day: int
    number: int


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Path]:
    folder = tmp_path_factory.mktemp("known") / "set"
    write_dataset(folder, seed=3)
    return read_dataset(folder), folder / "graphs"


@pytest.fixture(scope="module")
def served() -> ServedVersion:
    current = trained_store().current()
    assert current is not None
    return trained_store().load(current)


def find(collected: CollectedProfiles, served: ServedVersion, *alarms: tuple[str, str]) -> list[FoundChange]:
    return find_changes(collected, served, trained_store().held_out(served.version), alarms, ["invented"])


@pytest.fixture(scope="module")
def found(known: tuple[Dataset, Path], served: ServedVersion) -> Callable[..., list[FoundChange]]:
    def of_factor(factor: Callable[[Ran], float]) -> list[FoundChange]:
        return find(collect(known, [stored(known[0], ran, factor(ran)) for ran in all_runs()]), served, ALARM)

    return of_factor


def all_runs() -> list[Ran]:
    places = [(day, machine, job) for day in range(DAYS) for machine in range(2) for job in range(18)]
    return [Ran(job, machine, day, number) for number, (day, machine, job) in enumerate(places)]


def stored(dataset: Dataset, ran: Ran, factor: float) -> StoredMeasurementWindow:
    row = dataset.solo[ran.job]
    step_ms = (row.step_ms_mean or 0.0) * factor
    steps = round(20_000 / step_ms)
    measured = window(
        ran.number,
        campaign=f"collected_0000000{ran.machine}",
        job=MeasuredJob(graph_sha256=str(row.graph_sha256), settings=job_settings(row.family, row.batch)),
        micro_batch_size=row.batch,
        steps=steps,
        window_ms=round(steps * step_ms),
        utilization_ratio=row.utilization_ratio,
        memory_peak_bytes=row.memory_peak_bytes,
    )
    return StoredMeasurementWindow(window=measured, at_ms=(ran.day * 24 + ran.number) * HOUR_MS + HOUR_MS)


def collect(known: tuple[Dataset, Path], windows: list[StoredMeasurementWindow]) -> CollectedProfiles:
    dataset, graphs = known
    return collect_profiles(windows, graphs, [dataset])


@for_each("factor", [1.3, 1.5, 0.6, 3.0])
def test_all_jobs_slower_since_one_day_are_a_change_of_that_day(
    found: Callable[..., list[FoundChange]], factor: float
) -> None:
    (change,) = found(lambda ran: factor if ran.day >= 2 else 1.0)
    first = next(ran for ran in all_runs() if ran.day == 2)
    assert change.change.at_ms == (2 * 24 + first.number) * HOUR_MS + HOUR_MS
    assert change.change.shift == pytest.approx(math.log(factor), abs=0.03)
    assert (change.change.device, change.change.target) == ALARM
    assert change.change.datasets == ("invented",)
    assert len(change.newest.row_ids) == 18
    ratios = np.array(change.newest.measured) / np.array(change.newest.predicted)
    assert np.median(ratios) == pytest.approx(factor, rel=0.05)


def test_a_device_that_was_never_as_the_data_sets_say_changed_before_its_first_window(
    found: Callable[..., list[FoundChange]],
) -> None:
    (change,) = found(lambda _: 1.4)
    assert change.change.at_ms == HOUR_MS


def fifth_of_jobs(ran: Ran) -> float:
    return 3.0 if ran.job % 5 == 0 else 1.0


def fifth_of_windows(ran: Ran) -> float:
    return 3.0 if ran.number % 5 == 0 else 1.0


def fifth_of_jobs_since(ran: Ran) -> float:
    return 3.0 if ran.job % 5 == 0 and ran.day >= 2 else 1.0


def fifth_of_jobs_of_a_slower_device(ran: Ran) -> float:
    return (3.0 if ran.job % 5 == 0 else 1.0) * (1.5 if ran.day >= 2 else 1.0)


def one_family(ran: Ran) -> float:
    return 3.0 if ran.job < 3 and ran.day >= 2 else 1.0


def half_of_jobs(ran: Ran) -> float:
    return 3.0 if ran.job % 2 and ran.day >= 2 else 1.0


def most_jobs(ran: Ran) -> float:
    return 3.0 if ran.job % 5 and ran.day >= 2 else 1.0


def wrong_unit(ran: Ran) -> float:
    return 1_000.0 if ran.day >= 2 else 1.0


def one_slow_day(ran: Ran) -> float:
    return 3.0 if ran.day == 1 else 1.0


@for_each(
    "factor",
    [
        fifth_of_jobs,
        fifth_of_windows,
        fifth_of_jobs_since,
        fifth_of_jobs_of_a_slower_device,
        one_family,
        half_of_jobs,
        most_jobs,
        wrong_unit,
        one_slow_day,
    ],
)
def test_what_jobs_do_not_share_or_what_did_not_stay_is_no_change(
    found: Callable[..., list[FoundChange]], factor: Callable[[Ran], float]
) -> None:
    assert found(factor) == []


@for_each("seed", range(30))
def test_a_fifth_of_labels_three_times_too_large_is_no_change_wherever_it_falls(
    found: Callable[..., list[FoundChange]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    jobs = set(random.choice(18, 4, replace=False).tolist())
    windows = set(random.choice(len(all_runs()), len(all_runs()) // 5, replace=False).tolist())
    assert found(lambda ran: 3.0 if ran.job in jobs and ran.day >= 1 else 1.0) == []
    assert found(lambda ran: 3.0 if ran.number in windows else 1.0) == []


def test_a_machine_that_measures_otherwise_than_the_others_moves_nothing(
    known: tuple[Dataset, Path], served: ServedVersion
) -> None:
    """Each machine has jobs of its own, so that no median hides it; as the only one it is its device type."""
    mine = [ran for ran in all_runs() if ran.machine == ran.job % 2]
    windows = [stored(known[0], ran, 3.0 if ran.machine and ran.day >= 2 else 1.0) for ran in mine]
    assert find(collect(known, windows), served, ALARM) == []
    alone = [item for ran, item in zip(mine, windows, strict=True) if ran.machine]
    assert len(find(collect(known, alone), served, ALARM)) == 1


def test_jobs_of_families_that_were_never_learned_are_no_witnesses(
    known: tuple[Dataset, Path], served: ServedVersion
) -> None:
    """Newcomers that all run slower than is said show what the model does not know; nothing of the device."""
    dataset, graphs = known
    windows = [stored(dataset, ran, 1.5) for ran in all_runs()]
    renamed = tuple(dataclasses.replace(row, family=f"new_{row.family}") for row in dataset.solo)
    newcomers = collect_profiles(windows, graphs, [dataclasses.replace(dataset, solo=renamed)])
    assert find(newcomers, served, ALARM) == []


def test_without_an_alarm_on_it_nothing_is_a_change(known: tuple[Dataset, Path], served: ServedVersion) -> None:
    windows = [stored(known[0], ran, 1.5) for ran in all_runs()]
    collected = collect(known, windows)
    assert find(collected, served) == []
    assert find(collected, served, (DEVICE, "memory_bytes"), ("no such device", "step_ms")) == []


def test_a_change_that_is_known_is_not_found_again(known: tuple[Dataset, Path], served: ServedVersion) -> None:
    """The served version stands for one that learned the change: windows of before are restated to its level."""
    windows = [stored(known[0], ran, 1.0 if ran.day >= 2 else 0.5) for ran in all_runs()]
    since_ms = min(item.at_ms for ran, item in zip(all_runs(), windows, strict=True) if ran.day >= 2)
    change = DeviceChange(device=DEVICE, target="step_ms", at_ms=since_ms, shift=math.log(2.0))
    dataset, graphs = known
    assert find(collect_profiles(windows, graphs, [dataset], [change]), served, ALARM) == []


def test_alarms_of_the_bound_of_memory_are_alarms_of_memory() -> None:
    def state(target: str, *, is_alarming: bool) -> TargetDrift:
        return TargetDrift(
            device="a100",
            target=target,
            model_version="v",
            outcomes=50,
            error_ratio=0.5,
            bias_ratio=0.5,
            covered_ratio=0.1,
            promised_ratio=0.9,
            is_alarming=is_alarming,
            alarms=1,
        )

    report = DriftReport(targets=(state(MEMORY_BOUND, is_alarming=True), state("step_ms", is_alarming=False)))
    assert alarming_targets(report) == {("a100", "memory_bytes")}


def test_what_is_older_than_a_change_is_restated_and_what_is_newer_is_not(known: tuple[Dataset, Path]) -> None:
    dataset = dataclasses.replace(known[0], name="invented")
    named = {"at_ms": 100, "datasets": ("invented",)}
    slower = DeviceChange(device=DEVICE, target="step_ms", shift=math.log(1.5), **named)  # type: ignore[arg-type]
    busier = DeviceChange(device=DEVICE, target="utilization_ratio", shift=0.4, **named)  # type: ignore[arg-type]
    elsewhere = DeviceChange(device="a100", target="memory_bytes", shift=1.0, **named)  # type: ignore[arg-type]
    changes = [slower, busier, elsewhere]
    before = window()
    after = restate_window(StoredMeasurementWindow(window=before, at_ms=99), changes).window
    assert after is not None
    assert (after.window_ms, after.utilization_ratio, after.memory_peak_bytes) == (30_000, 1.0, 50_000_000)
    assert after.steps == before.steps
    measured_since_then = StoredMeasurementWindow(window=before, at_ms=100)
    assert restate_window(measured_since_then, changes) is measured_since_then
    rows = zip(dataset.solo, restate_dataset(dataset, changes).solo, strict=True)
    assert all(new.step_ms_mean == pytest.approx((old.step_ms_mean or 0) * 1.5) for old, new in rows)
    assert restate_dataset(dataset, [elsewhere]).solo == dataset.solo
    measured_since = dataclasses.replace(dataset, name="measured since")
    assert restate_dataset(measured_since, changes) is measured_since


def test_changes_add_up() -> None:
    changes = [
        DeviceChange(device=DEVICE, target="step_ms", at_ms=at_ms, shift=math.log(factor), datasets=("a", "b"))
        for at_ms, factor in ((100, 2.0), (200, 3.0))
    ]
    assert restate(1.0, changes, device=DEVICE, target="step_ms") == pytest.approx(6.0)
    assert restate(1.0, changes, device=DEVICE, target="memory_bytes") == 1.0
    stored = [StoredMeasurementWindow(window=window(), at_ms=at_ms) for at_ms in (0, 150, 200)]
    restated = [restate_window(item, changes).window for item in stored]
    assert [item.window_ms for item in restated if item] == [120_000, 60_000, 20_000]
    assert [change_from_json(change.as_json()) for change in changes] == changes
    with pytest.raises(KeyError):
        change_from_json({**changes[0].as_json(), "target": "noise"})
