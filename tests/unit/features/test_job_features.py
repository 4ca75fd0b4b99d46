"""What peaks say of the time of a step."""

from __future__ import annotations

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE
from predictor_service.features.graph_description import describe_graph
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
