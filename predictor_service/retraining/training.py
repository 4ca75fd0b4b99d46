"""Trains a version from every dataset below a folder. Same data and seed give the same version."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_features import FEATURE_INDEX, FEATURE_VERSION
from predictor_service.registry.held_out import HELD_OUT_FILE, HeldOut, HeldOutRows, held_out_to_json, name_row
from predictor_service.registry.manifest import LEARNING_VERSION, Manifest, TargetRecord, seal
from predictor_service.registry.model_card import write_card
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.datasets import Dataset, fingerprint, list_seen_groups, read_datasets
from predictor_service.retraining.fitting import FittedTarget, FittingTask, NotLearnable, fit_target
from predictor_service.retraining.pair_table import (
    PairTable,
    SoloKnowledge,
    build_pair_table,
    know_jobs,
    pair_analytical_estimate,
    pair_columns,
)
from predictor_service.retraining.solo_table import SoloExample, build_table, collect_examples
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.scoring import clip_to_seen
from predictor_service.selection.targets import SLOWDOWN, SOLO_TARGETS, Target

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Collected:
    """What a training run gathers."""

    targets: dict[str, dict[str, TargetRecord]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    held_out: dict[str, dict[str, HeldOutRows]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def add(self, task: FittingTask, fitted: FittedTarget, job_keys: Sequence[tuple[str, ...]]) -> None:
        name = fitted.record.target
        self.targets.setdefault(task.device, {})[name] = fitted.record
        self.files.update(fitted.files)
        measured = task.measured.tolist()
        self.held_out.setdefault(task.device, {})[name] = HeldOutRows(
            row_ids=tuple(
                name_row(task.device, name, keys, value) for keys, value in zip(job_keys, measured, strict=True)
            ),
            measured=tuple(measured),
            predicted=tuple(fitted.held_out_values(task).tolist()),
            groups=tuple(tuple(sorted(members)) for members in task.groups),
        )


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


def train_version(datasets: Sequence[Dataset], seed: int) -> TrainedVersion:
    """Trains on datasets; stores nothing.

    Args:
        datasets: At least one.
        seed: Of every regressor.

    Raises:
        TrainingDataError: Nothing can be learned from them.
    """
    collected = _Collected()
    # Sums of several threads depend on how many there are, and so would the version's name.
    with threadpool_limits(1):
        for name in sorted({row.device for dataset in datasets for row in dataset.solo}):
            device = find_device_type(name)
            if device is None:
                collected.skipped.append(f"{name}: not in the catalogue of devices, so it has no peaks to anchor at")
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
        )
    )
    _logger.info("trained", extra={"model_version": manifest.version, "skipped": len(collected.skipped)})
    files = {**collected.files, HELD_OUT_FILE: held_out, "card.md": write_card(manifest).encode()}
    return TrainedVersion(manifest=manifest, files=files, held_out=collected.held_out)


def _train_device(datasets: Sequence[Dataset], device: DeviceType, seed: int, collected: _Collected) -> None:
    examples, left_out = collect_examples(datasets, device)
    collected.skipped += [f"{device.name}: {count} solo rows, {reason}" for reason, count in sorted(left_out.items())]
    predicted: dict[Target, dict[str, float]] = {}
    for target in SOLO_TARGETS:
        table = build_table(examples, target, [FEATURE_INDEX[name] for name in target.columns])
        task = FittingTask(
            target=target,
            device=device.name,
            columns=table.columns,
            measured=table.measured,
            analytical_estimate=table.analytical_estimate,
            groups=table.groups,
            seed=seed,
            features=table.features,
        )
        try:
            fitted = fit_target(task)
        except NotLearnable as reason:
            collected.skipped.append(f"{device.name}, {target.name}: {reason}")
            continue
        collected.add(task, fitted, [(key,) for key in table.job_keys])
        predicted[target] = _mean_by_job(table.job_keys, fitted.held_out_values(task))
    _train_slowdown(datasets, device, examples, predicted, seed=seed, collected=collected)


def _mean_by_job(job_keys: Sequence[str], values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    keys = np.array(job_keys)
    return {key: float(values[keys == key].mean()) for key in sorted(set(job_keys))}


def _train_slowdown(
    datasets: Sequence[Dataset],
    device: DeviceType,
    examples: Sequence[SoloExample],
    predicted: dict[Target, dict[str, float]],
    *,
    seed: int,
    collected: _Collected,
) -> None:
    known = know_jobs(examples)
    table, left_out = build_pair_table(datasets, device, known)
    if left_out:
        collected.skipped.append(f"{device.name}: {left_out} pairs, a job's solo figures are not known")
    task = FittingTask(
        target=SLOWDOWN,
        device=device.name,
        columns=pair_columns(table, known, device),
        measured=table.measured,
        analytical_estimate=pair_analytical_estimate(table, known),
        groups=table.groups,
        seed=seed,
    )
    try:
        fitted = fit_target(task)
    except NotLearnable as reason:
        collected.skipped.append(f"{device.name}, {SLOWDOWN.name}: {reason}")
        return
    guessed = know_jobs(examples, predicted)
    record = dataclasses.replace(fitted.record, graph_bounds=_graph_bounds(task, fitted, table, guessed, device))
    job_keys = [
        (table.job_keys[victim], table.job_keys[other]) for victim, other in zip(table.victim, table.other, strict=True)
    ]
    collected.add(task, dataclasses.replace(fitted, record=record), job_keys)


def _graph_bounds(
    task: FittingTask,
    fitted: FittedTarget,
    table: PairTable,
    guessed: dict[str, SoloKnowledge],
    device: DeviceType,
) -> ConformalBounds:
    """Residuals on held-out families when not even the jobs alone were measured: the same models, predicted inputs."""
    columns = pair_columns(table, guessed, device)
    encoded = task.target.encode(task.measured, pair_analytical_estimate(table, guessed))
    residuals = [
        encoded[fold.test] - clip_to_seen(model.predict(columns[fold.test]), encoded[fold.train])
        for fold, model in zip(fitted.folds, fitted.score.held_out.models, strict=True)
    ]
    return calibrate(np.concatenate(residuals), fitted.record.groups)
