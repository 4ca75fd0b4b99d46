"""A cluster that never ran a campaign learns its first version from what its jobs did."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.errors import TrainingDataError
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow
from predictor_service.profile_store.store import FILE_NAME, ProfileStore
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.retraining.collected_rows import NAME
from predictor_service.retraining.datasets import Dataset, read_dataset
from predictor_service.retraining.retraining_run import RetrainingOutcome, RetrainingPlan, RetrainingResult, retrain
from tests.support.measured_dataset import write_dataset
from tests.support.measurement_windows import CAMPAIGN, NOW_MS

WINDOW_MS = 20_000


def retrain_from_profiles(root: Path) -> RetrainingResult:
    plan = RetrainingPlan(state_dir=root, datasets=root / "none", from_outcomes=True, seed=7)
    with closing(ModelRegistry(root / "models", "a test")) as registry:
        return retrain(plan, registry, lambda line: None)


def job_of(row: SoloRow) -> MeasuredJob:
    settings = JobSettings(global_batch_size=row.batch, optimizer=row.optimizer, input_wait_ratio=row.input_wait_ratio)
    return MeasuredJob(graph_sha256=str(row.graph_sha256), settings=settings)


def as_window(number: int, job: MeasuredJob, step_ms: float, others: tuple[MeasuredJob, ...] = ()) -> MeasurementWindow:
    steps = round(WINDOW_MS / step_ms)
    return MeasurementWindow(
        window_id=f"{number:032x}",
        campaign=CAMPAIGN,
        device="cpu-standin",
        job=job,
        others=others,
        micro_batch_size=job.settings.global_batch_size,
        steps=steps,
        window_ms=round(steps * step_ms),
    )


def windows_of(dataset: Dataset) -> list[MeasurementWindow]:
    """What agents would have measured if the jobs of a data set had run under them."""
    jobs = {row.job_key: job_of(row) for row in dataset.solo}
    windows = []
    for number, row in enumerate(dataset.solo):
        assert row.step_ms_mean is not None
        measured = as_window(number, jobs[row.job_key], row.step_ms_mean)
        fields: dict[str, Any] = {
            "utilization_ratio": row.utilization_ratio,
            "memory_peak_bytes": row.memory_peak_bytes,
        }
        windows.append(replace(measured, **fields))
    for number, pair in enumerate(dataset.pairs, start=len(windows)):
        windows.append(_co_located(number, pair, jobs))
    return windows


def _co_located(number: int, pair: PairRow, jobs: dict[str, MeasuredJob]) -> MeasurementWindow:
    assert pair.victim_step_ms_mean is not None
    others = tuple(jobs[key] for key in pair.other_job_keys)
    return as_window(number, jobs[pair.victim_job_key], pair.victim_step_ms_mean, others)


def test_the_first_version_comes_from_running_jobs_alone(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set")
    dataset = read_dataset(tmp_path / "set")
    (tmp_path / "models").mkdir()
    shutil.copytree(tmp_path / "set" / "graphs", tmp_path / "graphs")
    with closing(ProfileStore(tmp_path / FILE_NAME)) as store:
        added = store.add(windows_of(dataset), NOW_MS)
    assert added.refused == []
    result = retrain_from_profiles(tmp_path)
    assert (result.outcome, result.left_out) == (RetrainingOutcome.PROMOTED, {})
    with closing(ModelRegistry(tmp_path / "models", "a test")) as registry:
        manifest = registry.store.manifest(result.version)
    assert set(manifest.datasets) == {NAME}
    rows = {name: record.rows for name, record in manifest.targets["cpu-standin"].items()}
    solo, pairs = len(dataset.solo), len(dataset.pairs)
    assert rows == {"step_ms": solo, "memory_bytes": solo, "utilization_ratio": solo, "slowdown_ratio": pairs}


def test_a_store_without_anything_to_learn_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    ProfileStore(tmp_path / FILE_NAME).close()
    with pytest.raises(TrainingDataError, match="let jobs run longer"):
        retrain_from_profiles(tmp_path)
