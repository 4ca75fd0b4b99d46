"""Trains a version from every dataset below a folder. Same data and seed give the same version."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_features import FEATURE_INDEX, FEATURE_VERSION
from predictor_service.registry.manifest import Manifest, TargetRecord, version_name
from predictor_service.registry.model_card import write_card
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.retraining.datasets import Dataset, find_datasets, read_dataset
from predictor_service.retraining.fitting import FittedTarget, FittingTask, NotLearnable, fit_target
from predictor_service.retraining.pair_table import (
    PairTable,
    SoloKnowledge,
    build_pair_table,
    know_jobs,
    pair_anchor,
    pair_columns,
)
from predictor_service.retraining.solo_table import SoloExample, build_table, collect_examples
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.scoring import clip_to_seen
from predictor_service.selection.targets import SLOWDOWN, SOLO_TARGETS, Target

_logger = logging.getLogger(__name__)

LEARNING_VERSION: Final = 1
"""Raise it with every change of anchors, folds, candidates' settings or intervals: it is part of a version's name, so
that models learned by older rules are learned anew instead of being taken for the same."""


@dataclass(slots=True)
class _Collected:
    """What a training run gathers."""

    targets: dict[str, dict[str, TargetRecord]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def add(self, device: str, fitted: FittedTarget) -> None:
        self.targets.setdefault(device, {})[fitted.record.target] = fitted.record
        self.files[fitted.record.file_name] = fitted.content


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
    folders = find_datasets(datasets_root)
    if not folders:
        raise TrainingDataError(
            f"{datasets_root} holds no dataset", remedy="a dataset is a folder with solo.csv, pairs.csv and graphs/"
        )
    datasets = [read_dataset(folder) for folder in folders]
    collected = _Collected()
    for name in sorted({row.device for dataset in datasets for row in dataset.solo}):
        device = find_device_type(name)
        if device is None:
            collected.skipped.append(f"{name}: not in the catalogue of devices, so it has no peaks to anchor at")
        else:
            _train_device(datasets, device, seed, collected)
    if not collected.targets:
        raise TrainingDataError("nothing can be learned", remedy="; ".join(collected.skipped) or "measure more jobs")
    manifest = _manifest(datasets, seed, collected)
    store.add(manifest, {**collected.files, "card.md": write_card(manifest).encode()})
    store.activate(manifest.version)
    _logger.info("trained", extra={"model_version": manifest.version, "skipped": len(collected.skipped)})
    return manifest.version


def _manifest(datasets: Sequence[Dataset], seed: int, collected: _Collected) -> Manifest:
    fingerprint = hashlib.sha256("".join(sorted(dataset.sha256 for dataset in datasets)).encode()).hexdigest()
    content = {
        "fingerprint": fingerprint,
        "feature_version": FEATURE_VERSION,
        "learning_version": LEARNING_VERSION,
        "seed": seed,
        "candidates": list(CANDIDATES),
        "columns": {target.name: list(target.columns) for target in (*SOLO_TARGETS, SLOWDOWN)},
    }
    return Manifest(
        version=version_name(content),
        seed=seed,
        feature_version=FEATURE_VERSION,
        fingerprint=fingerprint,
        datasets=tuple(dataset.name for dataset in datasets),
        targets=collected.targets,
        skipped=tuple(collected.skipped),
    )


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
            anchor=table.anchor,
            groups=table.groups,
            seed=seed,
        )
        try:
            fitted = fit_target(task)
        except NotLearnable as reason:
            collected.skipped.append(f"{device.name}, {target.name}: {reason}")
            continue
        collected.add(device.name, fitted)
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
        anchor=pair_anchor(table, known),
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
    collected.add(device.name, dataclasses.replace(fitted, record=record))


def _graph_bounds(
    task: FittingTask,
    fitted: FittedTarget,
    table: PairTable,
    guessed: dict[str, SoloKnowledge],
    device: DeviceType,
) -> ConformalBounds:
    """Residuals on held-out families when not even the jobs alone were measured: the same models, predicted inputs."""
    columns = pair_columns(table, guessed, device)
    encoded = task.target.encode(task.measured, pair_anchor(table, guessed))
    residuals = [
        encoded[fold.test] - clip_to_seen(model.predict(columns[fold.test]), encoded[fold.train])
        for fold, model in zip(fitted.folds, fitted.score.held_out.models, strict=True)
    ]
    return calibrate(np.concatenate(residuals), fitted.record.groups)
