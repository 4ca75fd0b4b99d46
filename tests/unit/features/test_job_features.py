"""What peaks say of the time of a step."""

from __future__ import annotations

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.job_features import FEATURE_INDEX, JobFeatures, build_features
from tests.support.onnx_graphs import GraphBuilder

T4 = "Tesla T4"


def recurrent_job(cell: str, gates: int, steps: int, device: str, mode: str = "train") -> JobFeatures:
    net = GraphBuilder()
    weights = [net.weight([1, 8 * gates, 8]), net.weight([1, 8 * gates, 8])]
    y = net.node(cell, [net.input("x", [steps, "batch", 8]), *weights], hidden_size=8)
    graph = describe_graph(net.model(y).SerializeToString()).at_batch(1)
    return build_features(graph, JobSettings(global_batch_size=1, mode=mode), DEVICE_TYPES[device])


@pytest.mark.parametrize("device", [T4, STANDIN_DEVICE])
@pytest.mark.parametrize(("mode", "passes"), [("train", 3), ("infer", 1)])
def test_every_step_of_a_small_recurrent_layer_waits_for_its_launch(device: str, mode: str, passes: int) -> None:
    short, long = (recurrent_job("GRU", 3, steps, device, mode) for steps in (100, 200))
    launches_ms = passes * 100 * DEVICE_TYPES[device].launch_ms
    assert long.roofline_ms - short.roofline_ms == pytest.approx(launches_ms, rel=0.2)
    assert long.values[FEATURE_INDEX["recurrent_time_ratio"]] == pytest.approx(1.0, abs=0.01)


def test_an_lstm_waits_on_a_gpu_and_not_where_a_library_takes_its_steps_in_one_call() -> None:
    waits, fused = (recurrent_job("LSTM", 4, 200, device).roofline_ms for device in (T4, STANDIN_DEVICE))
    assert waits > 200 * DEVICE_TYPES[T4].launch_ms
    assert fused < 200 * DEVICE_TYPES[STANDIN_DEVICE].launch_ms


def test_what_a_recurrent_layer_multiplies_is_a_product_and_what_it_waits_is_recurrent() -> None:
    fused, waiting = (recurrent_job(cell, 4, 200, STANDIN_DEVICE).values for cell in ("LSTM", "GRU"))
    assert fused[FEATURE_INDEX["matrix_multiply_time_ratio"]] == pytest.approx(1.0)
    assert fused[FEATURE_INDEX["recurrent_time_ratio"]] == 0.0
    assert waiting[FEATURE_INDEX["matrix_multiply_time_ratio"]] < 0.1
    assert fused[FEATURE_INDEX["recurrent_work_ratio"]] == waiting[FEATURE_INDEX["recurrent_work_ratio"]] == 1.0


def convolving_job(device: str, precision: str) -> JobFeatures:
    net = GraphBuilder()
    y = net.node("Conv", [net.input("x", ["batch", 256, 64, 64]), net.weight([256, 256, 3, 3])], pads=[1, 1, 1, 1])
    graph = describe_graph(net.model(y).SerializeToString()).at_batch(64)
    return build_features(graph, JobSettings(global_batch_size=64, precision=precision), DEVICE_TYPES[device])


def test_a_convolution_of_32_bits_runs_in_tf32_on_ampere_and_in_32_bits_before_it() -> None:
    ampere, turing = "NVIDIA A100-SXM4-40GB", "NVIDIA TITAN RTX"
    assert convolving_job(ampere, "fp32").roofline_ms == convolving_job(ampere, "tf32").roofline_ms
    as_fast_as_the_clock = convolving_job(turing, "fp32").roofline_ms / convolving_job(ampere, "fp32").roofline_ms
    assert as_fast_as_the_clock > 0.5 * 156 / 16.3


def test_a_matrix_product_of_32_bits_stays_in_32_bits_on_ampere() -> None:
    net = GraphBuilder()
    y = net.node("MatMul", [net.input("x", ["batch", 4096]), net.weight([4096, 4096])])
    graph = describe_graph(net.model(y).SerializeToString()).at_batch(4096)
    device = DEVICE_TYPES["NVIDIA A100-SXM4-40GB"]
    plain, tf32 = (
        build_features(graph, JobSettings(global_batch_size=4096, precision=precision), device).roofline_ms
        for precision in ("fp32", "tf32")
    )
    assert plain > 2 * tf32
