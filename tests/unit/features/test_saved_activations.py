"""Bytes that the backward pass needs, one rule at a time; every tensor here is batch x 4 x 8 x 8 floats."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from predictor_service.features.graph_description import describe_graph
from tests.support.onnx_graphs import GraphBuilder, mobilenet_v2, resnet50, vgg16

TENSOR_BYTES = 4 * 8 * 8 * 4


def saved_bytes(net: GraphBuilder, output: str) -> int:
    return describe_graph(net.model(output).SerializeToString()).at_batch(1).activation_bytes_saved


def trained(net: GraphBuilder) -> str:
    """A tensor that a gradient flows through, whose own producer keeps only a graph input."""
    return net.conv(net.input("x", ["batch", 4, 8, 8]), (4, 4))


def test_inputs_and_parameters_are_not_counted() -> None:
    net = GraphBuilder()

    assert saved_bytes(net, trained(net)) == 0


def test_a_convolution_keeps_its_input() -> None:
    net = GraphBuilder()

    assert saved_bytes(net, net.conv(trained(net), (4, 4), kernel=3)) == TENSOR_BYTES


def test_a_relu_keeps_its_output_which_the_next_layer_shares() -> None:
    net = GraphBuilder()
    y = net.conv(net.node("Relu", [trained(net)]), (4, 4))

    assert saved_bytes(net, y) == TENSOR_BYTES


def test_additions_keep_nothing() -> None:
    net = GraphBuilder()
    x = trained(net)

    assert saved_bytes(net, net.node("Add", [x, x])) == 0


def test_a_product_keeps_both_factors_when_both_are_trained() -> None:
    net = GraphBuilder()
    first, second = net.node("Add", [trained(net), net.weight([8])]), net.node("Add", ["x", net.weight([8])])

    assert saved_bytes(net, net.node("Mul", [first, second])) == 2 * TENSOR_BYTES


def test_a_product_with_a_constant_number_keeps_nothing() -> None:
    net = GraphBuilder()

    assert saved_bytes(net, net.node("Mul", [trained(net), net.scalar(0.5)])) == 0


def test_a_view_keeps_the_storage_it_looks_at_once() -> None:
    net = GraphBuilder()
    x = trained(net)
    flat = net.node("Flatten", [x])
    y = net.dense(flat, 256, 10)
    z = net.dense(net.node("Reshape", [x, net.integers([0, 256])]), 256, 10)

    assert saved_bytes(net, net.node("Add", [y, z])) == TENSOR_BYTES


def test_max_pooling_keeps_its_input_and_the_positions_of_the_maxima() -> None:
    net = GraphBuilder()

    assert saved_bytes(net, net.max_pool(trained(net), 2, 2)) == TENSOR_BYTES + 4 * 4 * 4 * 8


def test_dropout_keeps_a_mask_only_while_training() -> None:
    training, inference = GraphBuilder(), GraphBuilder()
    flag = training.name("flag")
    training.initializers.append(TensorProto(name=flag, data_type=TensorProto.BOOL, int32_data=[1]))
    dropped = training.node("Dropout", [trained(training), training.scalar(0.5), flag])

    assert saved_bytes(training, dropped) == TENSOR_BYTES // 4
    assert saved_bytes(inference, inference.node("Dropout", [trained(inference)])) == 0


def test_nothing_is_kept_where_no_gradient_flows() -> None:
    net = GraphBuilder()
    y = net.node("Tanh", [net.node("Relu", [net.input("x", ["batch", 4, 8, 8])])])

    assert saved_bytes(net, y) == 0


@pytest.mark.parametrize(
    ("build", "tracked_mib"),
    [(resnet50, 2603), (vgg16, 2132), (mobilenet_v2, 2368)],
    ids=["resnet50", "vgg16", "mobilenet_v2"],
)
def test_whole_networks_agree_with_an_allocation_trace(build: object, tracked_mib: int) -> None:
    """Against activations traced in PyTorch at batch 32 (MemTracker, CPU, Adam). VGG was traced with its dropout."""
    assert callable(build)
    saved = describe_graph(build().SerializeToString()).at_batch(32).activation_bytes_saved

    assert saved / 2**20 == pytest.approx(tracked_mib, rel=0.05)
