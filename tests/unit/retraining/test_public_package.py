"""The models that come with the program are those that its command makes from the rows that come with it."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.fitting.fit import fit_rows
from predictor_service.registry.public_version import PUBLIC_MODELS, TEACHING_SETS, PackedVersion, read_public_version
from predictor_service.registry.served_version import load_target
from predictor_service.regressors.candidates import UNCORRECTED
from predictor_service.retraining.carried_devices import models_of_package
from predictor_service.retraining.datasets import PUBLIC, Dataset, hash_datasets
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.retraining.public_rows import read_public_datasets
from predictor_service.retraining.training import LEVEL
from predictor_service.selection.targets import STEP
from predictor_service.settings import default_datasets_dir
from tests.support.cases import sampled

TOLERANCE = 1e-3
"""Of predictions made again: as logarithms. The same libraries give the same trees; others may round otherwise."""
MEBIBYTE = 1 << 20


@cache
def committed() -> PackedVersion:
    packed = read_public_version()
    assert packed is not None, "made by other rules; run python -m predictor_service train-public-models"
    return packed


def test_the_committed_models_were_made_from_the_rows_that_come_with_the_program() -> None:
    """Where this fails: python -m predictor_service train-public-models."""
    root = default_datasets_dir()
    public = {name: sha256 for name, sha256 in hash_datasets(root / PUBLIC).items() if name in TEACHING_SETS}
    assert dict(committed().manifest.datasets) == {**hash_datasets(root), **public}


@cache
def public_datasets() -> list[Dataset]:
    return read_public_datasets(default_datasets_dir())


@pytest.mark.parametrize("device", sampled(["Tesla T4", "Tesla K80"], 1))
def test_what_the_command_learns_again_answers_as_the_committed_models_do(device: str) -> None:
    """A sample, of few rows. Where this fails: python -m predictor_service train-public-models."""
    rows = select_rows(public_datasets(), STEP, DEVICE_TYPES[device], is_public=True).learned
    again = fit_rows(rows, LEVEL, committed().manifest.seed, is_public=True)
    record = committed().manifest.targets[device][STEP.name]
    stored = load_target(record, committed().files)
    columns = again.task.columns
    ours, theirs = (model.predict(columns, again.task.analytical_estimate) for model in (again.served, stored))
    assert record.winner == again.record.winner
    assert np.abs(np.log(ours / theirs)).max() < TOLERANCE
    assert record.rows == len(rows)


def test_all_public_models_say_so_and_the_stand_in_has_its_own() -> None:
    for device, records in committed().manifest.targets.items():
        assert {record.is_public for record in records.values()} == {device != "cpu-standin"}, device


def test_the_package_stays_small() -> None:
    assert PUBLIC_MODELS.stat().st_size < 6 * MEBIBYTE


def test_no_public_model_is_the_model_of_all_types_with_the_range_of_a_few_families() -> None:
    winners = {
        record.winner for records in committed().manifest.targets.values() for record in records.values()
        if record.is_public
    }  # fmt: skip
    assert winners
    assert UNCORRECTED not in winners


def test_what_a_package_has_of_the_model_of_all_types_is_not_taken_over() -> None:
    """So it was of the V100: ResNet-50 took 11 to 844 ms, where types that nobody measured have a factor of two."""
    packed = committed()
    device = "Tesla T4"
    records = packed.manifest.targets[device]
    as_it_is = {name: dataclasses.replace(record, winner=UNCORRECTED) for name, record in records.items()}
    manifest = dataclasses.replace(packed.manifest, targets={**packed.manifest.targets, device: as_it_is})
    kept = models_of_package(dataclasses.replace(packed, manifest=manifest)).manifest.targets
    assert device not in kept
    assert set(models_of_package(packed).manifest.targets) == {device, *kept}
