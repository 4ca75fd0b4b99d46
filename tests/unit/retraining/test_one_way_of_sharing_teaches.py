"""Pairs that took turns teach nothing of pairs under MPS, nor the reverse: a model learns one way and says which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.pair_estimator import estimate_pairs
from predictor_service.inference.records import PairJob, PairsQuestion
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.model_card import write_card
from predictor_service.registry.served_version import load_target
from predictor_service.retraining.datasets import Dataset, read_dataset
from predictor_service.retraining.learned_rows import select_rows, way_of
from predictor_service.retraining.training import TrainedVersion, train_version
from predictor_service.selection.targets import SLOWDOWN
from tests.support.measured_dataset import write_dataset

DEVICE = DEVICE_TYPES["cpu-standin"]


def dataset_of(folder: Path, *, under_mps: int) -> Dataset:
    """Every pair in turns, and so many of them under MPS too, where they lose next to nothing."""
    write_dataset(folder)
    found = read_dataset(folder)
    side_by_side = [
        replace(row, share_mode="mps", run_id=f"{row.run_id}-mps", slowdown_ratio=0.01)
        for row in (*found.pairs, *found.pairs)[:under_mps]
    ]
    return replace(found, pairs=(*found.pairs, *side_by_side))


def test_the_way_of_the_most_pairs_teaches_and_the_others_are_counted(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, under_mps=5)
    rows = select_rows([dataset], SLOWDOWN, DEVICE)
    assert way_of(rows.learned) == "time_slicing"
    assert len(rows.learned) == len(dataset.pairs) - 5
    assert rows.left_out == {"their jobs shared the device by mps, not by time_slicing": 5}
    assert len(select_rows([dataset], SLOWDOWN, DEVICE, share_mode="mps").learned) == 5


def test_what_is_published_stays_one_set(tmp_path: Path) -> None:
    rows = select_rows([dataset_of(tmp_path, under_mps=5)], SLOWDOWN, DEVICE, is_public=True).learned
    assert way_of(rows) == ""
    assert {job.labels["share_mode"] for job in rows.jobs} == {"time_slicing", "mps"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset_of(tmp_path_factory.mktemp("set"), under_mps=5)


@pytest.fixture(scope="module")
def trained(dataset: Dataset) -> TrainedVersion:
    return train_version([dataset], seed=1)


def test_a_version_says_the_way_that_it_learned_and_reads_it_back(trained: TrainedVersion) -> None:
    again = Manifest.from_json(trained.manifest.to_json())
    records = again.targets["cpu-standin"]
    assert {name: record.share_mode for name, record in records.items() if record.share_mode} == {
        SLOWDOWN.name: "time_slicing"
    }
    assert write_card(again).count("All pairs shared the device by time_slicing") == 1


@pytest.mark.parametrize(
    ("learned", "asked", "is_sure"),
    [
        ("time_slicing", DeviceSharing.TIME_SLICING, True),
        ("time_slicing", DeviceSharing.UNSTATED, True),
        ("time_slicing", DeviceSharing.MPS, False),
        ("mps", DeviceSharing.TIME_SLICING, False),
        ("", DeviceSharing.MPS, True),  # a version of before, which has learned both ways
        ("mig", DeviceSharing.MPS, True),
    ],
)
def test_a_model_of_the_other_way_answers_out_of_domain(
    trained: TrainedVersion, dataset: Dataset, learned: str, asked: DeviceSharing, is_sure: bool
) -> None:
    record = replace(trained.manifest.targets["cpu-standin"][SLOWDOWN.name], share_mode=learned)
    model = load_target(record, trained.files)
    answer = estimate_pairs(question(dataset, asked), DEVICE, model, _no_estimator)
    assert bool(answer.in_domain[0, 1]) is is_sure


def _no_estimator(job: PairJob) -> JobEstimator:
    raise AssertionError(job)


def question(dataset: Dataset, asked: DeviceSharing) -> PairsQuestion:
    """Two jobs of the set, as they were measured alone."""
    alone = {row.job_key: row for row in dataset.solo}
    keys = (dataset.pairs[0].victim_job_key, dataset.pairs[0].other_job_keys[0])
    jobs = [
        PairJob(
            job_id=str(place),
            settings=JobSettings(global_batch_size=alone[key].batch, input_wait_ratio=alone[key].input_wait_ratio),
            known_step_ms=alone[key].step_ms_mean,
            known_utilization_ratio=alone[key].utilization_ratio,
            known_memory_bytes=float(alone[key].memory_reserved_bytes or alone[key].memory_peak_bytes or 1),
        )
        for place, key in enumerate(keys)
    ]
    return PairsQuestion(device="cpu-standin", jobs=jobs, sharing=asked)
