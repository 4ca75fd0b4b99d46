"""Trains a version from every dataset below a folder. Same data and seed give the same version."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_features import FEATURE_VERSION
from predictor_service.fitting.conversion import NotLearnable
from predictor_service.fitting.fit import FittedTarget, fit_rows
from predictor_service.fitting.known_rows import name_jobs_of, name_rows, read_known_rows
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.registry.device_change import DeviceChange
from predictor_service.registry.held_out import HELD_OUT_FILE, HeldOut, HeldOutRows, held_out_to_json
from predictor_service.registry.manifest import LEARNING_VERSION, Manifest, TargetRecord, seal
from predictor_service.registry.model_card import write_card
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.datasets import Dataset, fingerprint, list_seen_groups, read_datasets
from predictor_service.retraining.learned_rows import select_rows, way_of
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.scoring import clip_to_seen
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SOLO_TARGETS, STEP, UTILIZATION, Target

LEVEL: Final = "family"
"""What requests to a service contain that it has not seen."""
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Collected:
    """What a training run gathers."""

    targets: dict[str, dict[str, TargetRecord]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    held_out: dict[str, dict[str, HeldOutRows]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    is_public: bool = False

    def add(self, learning_task: LearningTask, fitted: FittedTarget) -> None:
        name = fitted.record.target
        self.targets.setdefault(learning_task.device, {})[name] = fitted.record
        self.files.update(fitted.files)
        self.held_out.setdefault(learning_task.device, {})[name] = HeldOutRows(
            row_ids=tuple(name_rows(learning_task)),
            measured=tuple(learning_task.measured.tolist()),
            predicted=tuple(fitted.held_out_values().tolist()),
            groups=tuple(tuple(sorted(members)) for members in learning_task.groups(LEVEL)),
            jobs=() if self.is_public else tuple(name_jobs_of(learning_task)),  # what is published stays as it is
        )

    def skip(self, device: DeviceType, what: str, left_out: Mapping[str, int]) -> None:
        self.skipped += [f"{device.name}: {count} {what}, {reason}" for reason, count in sorted(left_out.items())]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedVersion:
    """A version that is not stored yet.

    Attributes:
        manifest: Sealed.
        files: Content by file name, for `VersionStore.add`.
        held_out: Predictions for rows whose groups were not shown.
    """

    manifest: Manifest
    files: Mapping[str, bytes]
    held_out: HeldOut


def train(datasets_root: Path, store: VersionStore, seed: int) -> str:
    """Trains on every dataset below a folder, stores the version and makes it the one to serve.

    Args:
        datasets_root: Folder of dataset folders.
        store: Where the version goes.
        seed: Of every regressor.

    Returns:
        Name of the version.

    Raises:
        TrainingDataError: There is no dataset, one is broken, or nothing can be learned from them.
    """
    trained = train_version(read_datasets(datasets_root), seed)
    store.add(trained.manifest, trained.files)
    store.activate(trained.manifest.version)
    return trained.manifest.version


def train_version(
    datasets: Sequence[Dataset], seed: int, *, is_public: bool = False, changes: Sequence[DeviceChange] = ()
) -> TrainedVersion:
    """Trains on datasets; stores nothing.

    Args:
        datasets: At least one.
        seed: Of every regressor.
        is_public: See `FittingTask`.
        changes: By which they were restated, for the manifest.

    Raises:
        TrainingDataError: Nothing can be learned from them.
    """
    collected = _Collected(is_public=is_public)
    # Sums of several threads depend on how many there are, and so would the version's name.
    with threadpool_limits(1):
        for name in sorted({row.device for dataset in datasets for row in dataset.solo}):
            device = find_device_type(name)
            if device is None:
                count = sum(row.device == name for dataset in datasets for row in dataset.solo)
                collected.skipped.append(
                    f"{name}: {count} rows, not in the catalogue of devices: no peaks to estimate by"
                )
            else:
                _train_device(datasets, device, seed, collected)
    if not collected.targets:
        raise TrainingDataError("nothing can be learned", remedy="; ".join(collected.skipped) or "measure more jobs")
    held_out = held_out_to_json(collected.held_out).encode()
    manifest = seal(
        Manifest(
            version="",
            seed=seed,
            feature_version=FEATURE_VERSION,
            learning_version=LEARNING_VERSION,
            fingerprint=fingerprint({dataset.name: dataset.sha256 for dataset in datasets}),
            datasets={dataset.name: dataset.sha256 for dataset in datasets},
            targets=collected.targets,
            skipped=tuple(collected.skipped),
            seen=list_seen_groups(datasets),
            held_out_sha256=hashlib.sha256(held_out).hexdigest(),
            changes=tuple(changes),
        )
    )
    _logger.info("trained", extra={"model_version": manifest.version, "skipped": len(collected.skipped)})
    files = {**collected.files, HELD_OUT_FILE: held_out, "card.md": write_card(manifest).encode()}
    return TrainedVersion(manifest=manifest, files=files, held_out=collected.held_out)


def _train_device(datasets: Sequence[Dataset], device: DeviceType, seed: int, collected: _Collected) -> None:
    left_out: Counter[str] = Counter()
    predicted: dict[str, dict[str, float]] = {}
    for target in SOLO_TARGETS:
        learning_task, reasons = _read(datasets, target, device, is_public=collected.is_public)
        left_out |= reasons
        fitted = _fit(learning_task, device, seed, collected)
        if fitted is not None:
            collected.add(learning_task, fitted)
            predicted[target.name] = _mean_by_job(learning_task, fitted.held_out_values())
    collected.skip(device, "solo rows", left_out)
    pairs, left_out = _read(datasets, SLOWDOWN, device, is_public=collected.is_public)
    collected.skip(device, "pairs", left_out)
    fitted = _fit(pairs, device, seed, collected)
    if fitted is not None:
        way = "" if collected.is_public else way_of(pairs)
        bounds = _graph_bounds(pairs, fitted, predicted)
        record = dataclasses.replace(fitted.record, graph_bounds=bounds, share_mode=way)
        collected.add(pairs, dataclasses.replace(fitted, record=record))


def _read(
    datasets: Sequence[Dataset], target: Target, device: DeviceType, *, is_public: bool
) -> tuple[LearningTask, Counter[str]]:
    """Rows to learn from, in the order of their content, and how many were left out by reason."""
    rows = select_rows(datasets, target, device, is_public=is_public)
    return rows.learned, Counter(rows.left_out)


def _fit(learning_task: LearningTask, device: DeviceType, seed: int, collected: _Collected) -> FittedTarget | None:
    try:
        return fit_rows(learning_task, LEVEL, seed, is_public=collected.is_public)
    except NotLearnable as reason:
        collected.skipped.append(f"{device.name}, {learning_task.target.name}: {reason}")
        return None


def _mean_by_job(learning_task: LearningTask, values: FloatArray) -> dict[str, float]:
    keys = np.array([job.job_key for job in learning_task.jobs])
    return {key: float(values[keys == key].mean()) for key in sorted(set(keys.tolist()))}


def _graph_bounds(
    learning_task: LearningTask, fitted: FittedTarget, predicted: Mapping[str, Mapping[str, float]]
) -> ConformalBounds:
    """Residuals on held-out families when not even the jobs alone were measured: the same models, predicted inputs."""
    predicted_inputs = dataclasses.replace(
        learning_task,
        jobs=tuple(_guess(job, predicted) for job in learning_task.jobs),
        others=tuple(tuple(_guess(other, predicted) for other in others) for others in learning_task.others),
    )
    rows = read_known_rows(predicted_inputs)
    encoded = SLOWDOWN.encode(learning_task.measured, rows.analytical_estimate)
    residuals = [
        encoded[fold.test] - clip_to_seen(model.predict(rows.columns[fold.test]), encoded[fold.train])
        for fold, model in zip(fitted.folds, fitted.score.held_out.models, strict=True)
    ]
    return calibrate(np.concatenate(residuals), fitted.record.groups)


def _guess(job: JobFacts, predicted: Mapping[str, Mapping[str, float]]) -> JobFacts:
    """The job as if it had not been measured, where its figures could be predicted."""
    figures = {
        _FIGURES[target]: values[job.job_key]
        for target, values in predicted.items()
        if target in _FIGURES and job.job_key in values
    }
    return dataclasses.replace(job, solo=dataclasses.replace(job.solo, **figures))


_FIGURES: Final = {UTILIZATION.name: "utilization_ratio", STEP.name: "step_ms", MEMORY.name: "memory_bytes"}
"""Where a prediction stands among the figures of a job alone."""
