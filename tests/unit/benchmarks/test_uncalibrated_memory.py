"""Constants of memory for devices without measurements: what the command learns, and worth their bars."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from benchmarks.uncalibrated_memory import (
    BOUND_LEVEL,
    EXPECTED_LEVEL,
    HIGH_LEVEL,
    LOW_LEVEL,
    MemoryRows,
    capped,
    count_row,
    judge_largest_batches,
    learn,
    read_rows,
    relative_coefficients,
    summary,
    to_vector,
    with_largest_context,
)
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import SoloRow
from predictor_service.features.analytical_memory import count_memory
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.uncalibrated_memory import BOUND, EXPECTED, HIGH, LOW, MemoryConstants
from predictor_service.importers.imported_set import features_json, solo_row
from predictor_service.importers.timm_bench import import_timm_bench
from predictor_service.importers.zoo_features import ZooFeatures
from predictor_service.settings import default_datasets_dir
from tests.support.cases import sampled
from tests.support.shared_data import shared_data

SMALL_ALEXNET = "74138ea05ec6026e8b73aa42a4eac076d82c1afff832fd6df0f74fcb45acb062"


@cache
def public_rows() -> MemoryRows:
    return read_rows(shared_data("gpumemnet").parent)[0]


def as_constants(constants: Mapping[str, float], committed: MemoryConstants) -> MemoryConstants:
    return MemoryConstants(
        context_bytes=constants["context_mib"] * (1 << 20),
        convolution_bytes=constants["convolution_mib"] * (1 << 20),
        held_ratio=constants["held_ratio"],
        workspace_ratio=constants["workspace_ratio"],
        unfolded_bytes_max=committed.unfolded_bytes_max,
        keeps_gradients=committed.keeps_gradients,
    )


@pytest.mark.parametrize(
    ("level", "committed"),
    sampled([(BOUND_LEVEL, BOUND), (EXPECTED_LEVEL, EXPECTED), (LOW_LEVEL, LOW), (HIGH_LEVEL, HIGH)], 1),
)
def test_the_committed_constants_are_what_the_public_rows_teach(level: float, committed: MemoryConstants) -> None:
    learned = as_constants(learn(public_rows(), level), committed)
    assert learned.context_bytes == pytest.approx(committed.context_bytes, rel=0.01)
    assert learned.convolution_bytes == pytest.approx(committed.convolution_bytes, rel=0.01)
    assert learned.held_ratio == pytest.approx(committed.held_ratio, rel=0.01)
    assert learned.workspace_ratio == pytest.approx(committed.workspace_ratio, rel=0.01)


@pytest.mark.parametrize("name", sampled(["timm/resnet", "mlp", "cnn"], 1))
def test_a_family_that_taught_nothing_is_covered_to_98_per_cent_at_most_three_times_over(name: str) -> None:
    rows = public_rows()
    judged = np.char.startswith(rows.families, name) & ~rows.ended & ~rows.rejected
    learned = to_vector(learn(rows, BOUND_LEVEL, np.char.startswith(rows.families, name)))
    bounds = capped(rows.parts, BOUND_LEVEL) @ with_largest_context(learned)  # as it is served
    found = summary((bounds / rows.measured_bytes)[judged])
    assert found["rows"] > 100
    assert found["coverage_ratio"] >= 0.98
    assert found["bound_over_measured_mean"] <= 3


def test_dearer_shortfalls_cover_more_rows_and_rows_without_noise_give_their_coefficients_back() -> None:
    random = np.random.default_rng(3)
    parts = np.column_stack([np.ones(2_000), random.uniform(0, 10, 2_000)])
    exact = parts @ np.array([2.0, 3.0])
    measured = exact * np.exp(random.normal(0, 0.2, 2_000))
    equal = np.ones(2_000)
    covered = [
        float((parts @ relative_coefficients(parts / measured[:, None], level, equal) >= measured).mean())
        for level in (0.5, 0.9, 0.99)
    ]
    assert covered == sorted(covered)
    assert covered[-1] > 0.97
    assert relative_coefficients(parts / exact[:, None], 0.9, equal) == pytest.approx([2.0, 3.0])


def test_a_row_of_a_table_is_counted_as_its_graph_is_when_it_is_asked_about() -> None:
    graph = (default_datasets_dir() / "cpu_standin" / "graphs" / f"{SMALL_ALEXNET}.onnx").read_bytes()
    for mode, precision, optimizer in (
        ("train", "fp32", "adam"),
        ("train", "fp16", "momentum"),
        ("infer", "fp32", "sgd"),
    ):
        settings = JobSettings(global_batch_size=8, mode=mode, precision=precision, optimizer=optimizer)
        asked = count_memory(describe_graph(graph).at_batch(8), settings, DEVICE_TYPES["NVIDIA H200"])
        found = count_row(table_row(mode=mode, precision=precision, optimizer=optimizer))
        assert found is not None
        counted, convolves = found
        assert convolves
        for part in ("weights", "gradients", "optimizer_state", "loss"):
            assert getattr(counted, f"{part}_bytes") == pytest.approx(getattr(asked, f"{part}_bytes")), (part, mode)
        assert counted.activations_bytes + counted.workspace_bytes == pytest.approx(
            asked.activations_bytes + asked.workspace_bytes
        )
        if precision == "fp32":
            assert counted.activations_bytes == pytest.approx(asked.activations_bytes)
        else:  # no table says what keeps its width in mixed precision: here the positions of maxima, half of it all
            assert asked.activations_bytes / 2 < counted.activations_bytes < asked.activations_bytes


def table_row(**settings: str) -> SoloRow:
    return solo_row(
        run_id="r",
        campaign="c",
        device="NVIDIA H200",
        job_key="k",
        architecture="alexnet_small",
        family="alexnet",
        batch=8,
        features_json=features_json({}, ZooFeatures.load().of("alexnet_small")),
        **settings,
    )


def test_without_a_graph_nothing_is_counted() -> None:
    row = solo_row(run_id="r", campaign="c", device="d", job_key="k", architecture="a", family="f", batch=1)
    assert count_row(row) is None


@pytest.mark.endurance
def test_on_another_card_in_mixed_precision_the_batch_that_did_not_fit_has_a_bound_above_the_card() -> None:
    found = judge_largest_batches(import_timm_bench(shared_data("timm_bench")).solo)
    assert found["rows"] > 900
    assert found["coverage_ratio_at_most"] >= 0.98
    assert found["bound_over_capacity_mean"] <= 1.9
