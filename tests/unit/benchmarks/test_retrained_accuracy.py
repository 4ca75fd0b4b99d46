"""Retraining on half of a data set: nothing of the other half is seen, and an invented world's physics is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import retrained_accuracy
from benchmarks.retrained_accuracy import halve_families, keep_families
from predictor_service.retraining.datasets import Dataset, read_dataset
from tests.support.measured_dataset import FAMILIES, write_dataset


@pytest.fixture(name="dataset")
def _dataset(tmp_path: Path) -> Dataset:
    write_dataset(tmp_path / "invented")
    return read_dataset(tmp_path / "invented")


def test_families_are_halved_by_the_seed(dataset: Dataset) -> None:
    halves = {halve_families(dataset, seed) for seed in range(6)}
    assert {len(half) for half in halves} == {len(FAMILIES) // 2}
    assert len(halves) > 1
    assert halve_families(dataset, 3) == halve_families(dataset, 3)


def test_no_row_and_no_graph_of_another_family_is_kept(dataset: Dataset) -> None:
    families = frozenset(FAMILIES[:3])
    kept = keep_families(dataset, families)
    family_of = {row.job_key: row.family for row in dataset.solo}
    assert {row.family for row in kept.solo} == families
    assert len(kept.pairs) == 9
    assert all({family_of[key] for key in (row.victim_job_key, *row.other_job_keys)} <= families for row in kept.pairs)
    assert set(kept.graphs) == {row.graph_sha256 for row in kept.solo}


@pytest.mark.endurance
def test_a_world_that_follows_its_physics_is_predicted_on_unseen_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "invented")
    monkeypatch.setattr(retrained_accuracy, "_OWN_SET", tmp_path / "invented")
    monkeypatch.setenv("COTENANT_BENCHMARK_SEEDS", "1")
    figures = retrained_accuracy.main()
    for target in ("slowdown", "memory"):
        compared = figures[target]["any job unseen"]  # type: ignore[index]
        assert compared["met"]
        assert compared["ratio"] < 0.5
