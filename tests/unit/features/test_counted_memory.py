"""Parts of counted memory that settings decide: copies of weights in mixed precision, and what a loss holds."""

from __future__ import annotations

import dataclasses

import pytest
from onnx import TensorProto

from cotenant.job_settings import JobSettings
from predictor_service.features.analytical_memory import MemoryBreakdown, count_memory
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.uncalibrated_memory import UNMEASURED_FACTOR, estimate_uncalibrated
from tests.support.onnx_graphs import GraphBuilder, absent_tensor, vgg16

A100 = DEVICE_TYPES["NVIDIA A100-SXM4-40GB"]


def language_model(words: int) -> bytes:
    """Looks words up and says the next one."""
    net = GraphBuilder()
    table = net.weight([words, 16])
    found = net.node("Gather", [table, net.input("ids", ["batch", 32], 7)])
    return net.model(net.node("MatMul", [found, net.weight([16, words])])).SerializeToString()


def counted(graph: bytes, batch: int, **settings: str) -> MemoryBreakdown:
    job = JobSettings(global_batch_size=batch, **settings)  # type: ignore[arg-type]
    return count_memory(describe_graph(graph).at_batch(batch), job, A100)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mixed_precision_keeps_a_copy_of_the_weights_half_as_wide(precision: str) -> None:
    graph = vgg16().SerializeToString()
    plain, mixed = counted(graph, 8), counted(graph, 8, precision=precision)

    assert mixed.weights_bytes == pytest.approx(1.5 * plain.weights_bytes)
    assert mixed.gradients_bytes == plain.gradients_bytes
    assert 0.5 * plain.activations_bytes < mixed.activations_bytes < 0.6 * plain.activations_bytes


def test_a_loss_over_a_vocabulary_holds_three_times_the_outputs() -> None:
    graph = language_model(50_000)
    large = counted(graph, 64)

    assert large.loss_bytes == 3 * 64 * 32 * 50_000 * 4
    assert counted(graph, 64, precision="fp16").loss_bytes == large.loss_bytes
    assert large.passing_bytes == large.activations_bytes + large.loss_bytes
    assert counted(graph, 64, mode="infer").loss_bytes == 0


def test_activations_and_gradients_are_never_there_as_a_whole() -> None:
    graph = vgg16().SerializeToString()
    small, large = counted(graph, 1, optimizer="adam"), counted(graph, 64, optimizer="adam")
    weights = small.gradients_bytes

    assert small.total_bytes == small.context_bytes + weights + 2 * weights + 2 * weights  # the update is the peak
    stored = large.context_bytes + weights + 2 * weights
    assert large.total_bytes == stored + large.activations_bytes + large.workspace_bytes
    assert large.accumulated_bytes == large.total_bytes + weights
    assert small.accumulated_bytes == small.total_bytes


def test_an_update_takes_one_more_tensor_for_each_weight_on_a_gpu_and_none_on_a_processor() -> None:
    features = describe_graph(vgg16().SerializeToString()).at_batch(1)

    def taken(optimizer: str, device: str, mode: str = "train") -> float:
        job = JobSettings(global_batch_size=1, optimizer=optimizer, mode=mode)
        return count_memory(features, job, DEVICE_TYPES[device]).update_bytes

    gpu, weights = A100.name, features.parameter_bytes
    assert [taken(name, gpu) for name in ("sgd", "momentum", "adam", "adamw")] == [0, weights, weights, weights]
    assert taken("adam", gpu, "infer") == taken("adam", STANDIN_DEVICE) == 0


def test_what_the_allocator_reserves_counts_in_training_on_a_gpu_where_it_is_known() -> None:
    features = describe_graph(vgg16().SerializeToString()).at_batch(8)
    widest_bytes = 2 * features.widest_activation_bytes

    def workspace(reserved_bytes: int, device: str = A100.name, **settings: str) -> float:
        job = JobSettings(global_batch_size=8, **settings)  # type: ignore[arg-type]
        known = dataclasses.replace(features, reserved_bytes=reserved_bytes)
        return count_memory(known, job, DEVICE_TYPES[device]).workspace_bytes

    reserved = features.activation_bytes_saved + 3 * features.widest_activation_bytes
    assert features.reserved_bytes > features.activation_bytes_saved
    assert workspace(reserved) == 3 * features.widest_activation_bytes
    assert workspace(0) == workspace(features.activation_bytes_saved) == widest_bytes
    assert workspace(reserved, mode="infer") == workspace(reserved, device=STANDIN_DEVICE) == widest_bytes
    half = workspace(reserved, precision="fp16")
    assert half == 0.5 * reserved - features.activation_bytes_saved_mixed


def test_a_bound_in_mixed_precision_which_no_row_has_is_a_quarter_farther() -> None:
    parts = counted(vgg16().SerializeToString(), 8)
    plain, mixed = (
        estimate_uncalibrated(parts, A100, convolves=True, precision=precision) for precision in ("fp32", "fp16")
    )
    context_bytes = 2 << 30

    assert mixed.expected_bytes == plain.expected_bytes
    assert mixed.bound_bytes - context_bytes == pytest.approx(UNMEASURED_FACTOR * (plain.bound_bytes - context_bytes))
    assert mixed.lower_bytes < plain.lower_bytes


def test_what_a_convolution_unfolds_is_its_input_once_for_each_place_of_its_kernel() -> None:
    net = GraphBuilder()
    x = net.conv(net.input("x", ["batch", 4, 8, 8]), (4, 6))
    grouped = net.conv(x, (6, 6), kernel=3, group=3)
    features = describe_graph(net.model(net.conv(grouped, (6, 2), kernel=3, stride=2)).SerializeToString())

    assert features.at_batch(1).largest_unfolded_bytes == max(4 * 64 * 4, 2 * 9 * 64 * 4, 6 * 9 * 16 * 4)
    assert features.at_batch(10).largest_unfolded_bytes == 10 * features.at_batch(1).largest_unfolded_bytes


def narrow_network() -> bytes:
    """Three products and softmaxes of 16 bits."""
    net = GraphBuilder()
    x = net.input("x", ["batch", 32], TensorProto.BFLOAT16)
    for place in range(3):
        net.initializers.append(absent_tensor(f"weight_{place}", [32, 32], TensorProto.BFLOAT16))
        x = net.node("Softmax", [net.node("MatMul", [x, f"weight_{place}"])])
    model = net.model(x)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    return model.SerializeToString()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_network_of_16_bits_is_not_cast(precision: str) -> None:
    found = counted(narrow_network(), 8, precision=precision, optimizer="adam")
    weights, tensor = 3 * 32 * 32 * 2, 8 * 32 * 2

    assert (found.weights_bytes, found.gradients_bytes, found.optimizer_state_bytes) == (weights, weights, 2 * weights)
    assert found.activations_bytes == (3 + 2) * tensor  # answers of the softmaxes, the input and the output
    assert found.workspace_bytes == 2 * tensor
