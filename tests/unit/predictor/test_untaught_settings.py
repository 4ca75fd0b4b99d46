"""Activation checkpointing, DDP buckets and channels-last change answers and promise less: no row states them."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow, Source
from predictor_service.retraining.collected_rows import _refuse
from tests.support.measured_dataset import dense_network
from tests.support.onnx_graphs import mobilenet_v2, perceptron
from tests.support.predictor_service import open_predictor

GPU, STANDIN = "NVIDIA GeForce RTX 3090", "cpu-standin"
CONVOLVING, DENSE = mobilenet_v2("batch").SerializeToString(), perceptron("batch").SerializeToString()
BUCKET_BYTES = 26214400


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return open_predictor()


def ask(
    predictor: Predictor, graph: bytes = CONVOLVING, batch: int = 64, device: str = GPU, **settings: Any
) -> JobAnswer:
    job = JobSettings(global_batch_size=batch, optimizer=settings.pop("optimizer", "adam"), **settings)
    return predictor.predict_job(
        JobQuestion(settings=job, device=device, onnx_graph=graph, find_largest_batch=True, explain=True)
    )


@pytest.mark.parametrize("device", [GPU, STANDIN])
def test_activation_checkpointing_costs_time_and_spares_memory_and_larger_batches_fit(
    predictor: Predictor, device: str
) -> None:
    plain, spared = (ask(predictor, device=device, activation_checkpointing=each) for each in (False, True))
    assert spared.memory_bytes.value < plain.memory_bytes.value
    assert spared.memory_bytes.upper_99 is not None
    assert plain.memory_bytes.upper_99 is not None
    assert spared.memory_bytes.value <= spared.memory_bytes.upper_99 < plain.memory_bytes.upper_99
    assert spared.step_ms.value == pytest.approx(4 / 3 * plain.step_ms.value)
    assert spared.step_ms.lower == pytest.approx(plain.step_ms.lower)
    assert spared.largest_batch_that_fits is not None
    assert plain.largest_batch_that_fits is not None
    assert spared.largest_batch_that_fits > plain.largest_batch_that_fits
    assert spared.job_key != plain.job_key


def test_buckets_hold_the_gradients_once_more(predictor: Predictor) -> None:
    plain, exchanged = (ask(predictor, batch=1, ddp_bucket_bytes=each) for each in (None, BUCKET_BYTES))
    gradient_bytes = describe_graph(CONVOLVING).at_batch(1).parameter_bytes
    more_bytes = exchanged.memory_bytes.value - plain.memory_bytes.value
    assert 0.5 * gradient_bytes < more_bytes < 8 * gradient_bytes
    assert exchanged.memory_bytes.lower == plain.memory_bytes.lower


def test_copying_gradients_into_buckets_passes_them_through_memory_twice(predictor: Predictor) -> None:
    plain, exchanged = (ask(predictor, ddp_bucket_bytes=each).step_ms for each in (None, BUCKET_BYTES))
    gradient_bytes = describe_graph(CONVOLVING).at_batch(64).parameter_bytes
    copy_ms = 2e3 * gradient_bytes / DEVICE_TYPES[GPU].memory_bytes_per_s
    assert exchanged.value - plain.value == pytest.approx(copy_ms, rel=0.02)
    assert exchanged.lower == plain.lower
    assert exchanged.upper - plain.upper == pytest.approx(3 * copy_ms, rel=0.02)


def test_channels_last_spares_time_in_half_precision_where_anything_is_convolved(predictor: Predictor) -> None:
    def ratio(graph: bytes, precision: str) -> float:
        plain, other = (ask(predictor, graph, precision=precision, channels_last=each) for each in (False, True))
        assert other.memory_bytes.value == plain.memory_bytes.value
        return other.step_ms.value / plain.step_ms.value

    assert ratio(CONVOLVING, "fp16") == pytest.approx(0.91)
    assert ratio(CONVOLVING, "fp32") == 1.0
    assert ratio(DENSE, "fp16") == 1.0


@pytest.mark.parametrize("device", [GPU, STANDIN])
@pytest.mark.parametrize(
    "settings",
    [
        {"activation_checkpointing": True},
        {"ddp_bucket_bytes": BUCKET_BYTES},
        {"channels_last": True},
        {"sharded_ranks": 4},
    ],
    ids=str,
)
def test_such_answers_promise_nothing_and_name_the_setting(
    predictor: Predictor, device: str, settings: dict[str, Any]
) -> None:
    answer = ask(predictor, device=device, **settings)
    for estimate in (answer.memory_bytes, answer.step_ms):
        assert not estimate.in_domain
        assert estimate.range_not_calibrated
        assert any("never measured here" in text for text in estimate.unusual_features)
        assert estimate.lower <= estimate.value <= estimate.upper


WIDE = dense_network([4096] * 9 + [10])
"""Eight layers of 16 Mi weights: hardly anything but weights, gradients and state."""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_in_parts_leave_a_rank_its_part_and_what_is_gathered(predictor: Predictor, precision: str) -> None:
    plain, *parted = (
        ask(predictor, WIDE, batch=1, precision=precision, sharded_ranks=ranks).memory_bytes for ranks in (0, 2, 4, 64)
    )
    parameter_bytes = describe_graph(WIDE).at_batch(1).parameter_bytes
    values = [each.value for each in (plain, *parted)]
    assert values == sorted(values, reverse=True)
    for ranks, each in zip((2, 4, 64), parted, strict=True):
        spared = 1 - 1 / ranks
        # Of four copies of the weights (weights, gradients, two of Adam) each rank holds its part at least, and the
        # whole of weights and gradients at most.
        assert plain.value - each.value > 1.8 * spared * parameter_bytes
        assert each.lower < 0.6 * plain.lower
        assert each.upper_99 is not None
        assert plain.upper_99 is not None
        assert each.value < each.upper_99 < plain.upper_99 - 1.8 * spared * parameter_bytes


def test_what_a_capture_saw_gathered_bounds_what_is_whole_at_once(predictor: Predictor) -> None:
    all_or_less, some, much = (
        ask(predictor, WIDE, batch=1, sharded_ranks=8, gathered_ratio=ratio).memory_bytes for ratio in (0.0, 0.2, 0.9)
    )
    parameter_bytes = describe_graph(WIDE).at_batch(1).parameter_bytes
    assert some.value < much.value
    bounds = [each.upper_99 or 0.0 for each in (some, much, all_or_less)]
    assert bounds == sorted(bounds)
    assert bounds[2] - bounds[0] > 2 * 0.7 * 7 / 8 * parameter_bytes  # of weights and gradients


def test_a_job_in_parts_has_a_key_of_its_own_and_inference_is_not_divided(predictor: Predictor) -> None:
    assert ask(predictor, sharded_ranks=2).job_key != ask(predictor).job_key
    told: dict[str, Any] = {"mode": "infer", "optimizer": "sgd"}
    assert ask(predictor, sharded_ranks=2, **told).memory_bytes == ask(predictor, **told).memory_bytes


def test_inference_keeps_no_activations_and_exchanges_no_gradients(predictor: Predictor) -> None:
    plain = ask(predictor, mode="infer", optimizer="sgd")
    odd = ask(predictor, mode="infer", optimizer="sgd", activation_checkpointing=True, ddp_bucket_bytes=BUCKET_BYTES)
    assert odd.memory_bytes == plain.memory_bytes
    assert odd.step_ms == plain.step_ms


def test_memory_never_falls_as_the_batch_grows_whatever_is_set(predictor: Predictor) -> None:
    settings: dict[str, Any] = {
        "activation_checkpointing": True,
        "ddp_bucket_bytes": 1 << 40,
        "channels_last": True,
        "sharded_ranks": 8,
    }
    found = [ask(predictor, batch=batch, **settings).memory_bytes for batch in (1, 7, 64, 1000, 1_000_000)]
    for name in ("value", "lower", "upper_99"):
        values = [getattr(each, name) for each in found]
        assert values == sorted(values), name


def test_what_was_measured_with_such_settings_teaches_no_model_of_jobs_without() -> None:
    job = MeasuredJob(graph_sha256="0" * 64, settings=JobSettings(global_batch_size=8, activation_checkpointing=True))
    window = MeasurementWindow(
        window_id="0" * 32, campaign="test", device=GPU, job=job, micro_batch_size=8, steps=10, window_ms=10_000,
        utilization_ratio=0.5, sm_activity_ratio=None, memory_peak_bytes=1 << 30, source=Source.OUTCOME,
    )  # fmt: skip
    assert "activation checkpointing" in _refuse(window)
