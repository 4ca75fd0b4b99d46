"""Every formula of the cost table against a sum by hand."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.operator_families import OperatorFamily
from tests.support.onnx_graphs import GraphBuilder, mobilenet_v2


def features(net: GraphBuilder, output: str, batch: int = 1) -> GraphFeatures:
    return describe_graph(net.model(output).SerializeToString()).at_batch(batch)


def test_a_grouped_convolution_sums_over_the_channels_of_its_group() -> None:
    net = GraphBuilder()
    y = net.conv(net.input("x", ["batch", 32, 14, 14]), (32, 64), kernel=3, group=4)

    counted = features(net, y)

    assert counted.forward_macs == 14 * 14 * 64 * 8 * 9
    assert counted.operator_counts[OperatorFamily.CONVOLUTION] == 1


def test_a_convolution_of_single_channels_is_depthwise() -> None:
    net = GraphBuilder()
    y = net.conv(net.input("x", ["batch", 32, 14, 14]), (32, 32), kernel=3, group=32)

    assert features(net, y).operator_counts[OperatorFamily.DEPTHWISE_CONVOLUTION] == 1


def test_mobilenet_v2_has_seventeen_depthwise_convolutions() -> None:
    counts = describe_graph(mobilenet_v2().SerializeToString()).at_batch(1).operator_counts

    assert counts[OperatorFamily.DEPTHWISE_CONVOLUTION] == 17
    assert counts[OperatorFamily.CONVOLUTION] == 35


def test_a_transposed_convolution_spreads_every_input() -> None:
    net = GraphBuilder()
    x = net.input("x", ["batch", 16, 7, 7])
    y = net.node("ConvTranspose", [x, net.weight([16, 8, 2, 2])], kernel_shape=[2, 2], strides=[2, 2])

    assert features(net, y).forward_macs == 16 * 7 * 7 * 8 * 2 * 2


def test_a_batched_product_multiplies_every_pair() -> None:
    net = GraphBuilder()
    y = net.node("MatMul", [net.input("a", ["batch", 4, 5, 6]), net.input("b", ["batch", 4, 6, 7])])

    assert features(net, y, batch=3).forward_macs == 3 * 4 * 5 * 6 * 7


@pytest.mark.parametrize(("equation", "macs"), [("bij,bjk->bik", 3 * 5 * 6 * 7), ("...ij,...jk->...ik", 3 * 5 * 6 * 7)])
def test_an_einsum_costs_the_product_of_its_labels(equation: str, macs: int) -> None:
    net = GraphBuilder()
    y = net.node("Einsum", [net.input("a", ["batch", 5, 6]), net.input("b", ["batch", 6, 7])], equation=equation)

    assert features(net, y, batch=3).forward_macs == macs


def test_a_gru_in_two_directions_has_three_gates_each() -> None:
    net = GraphBuilder()
    weights = [net.weight([2, 96, 16]), net.weight([2, 96, 32])]
    y = net.node("GRU", [net.input("x", [9, "batch", 16]), *weights], hidden_size=32, direction="bidirectional")

    counted = features(net, y, batch=4)

    assert counted.forward_macs == 9 * 4 * 2 * 96 * (16 + 32)
    assert counted.recurrent_steps == 2 * 9
    assert counted.lstm_steps == 0


def test_the_weights_of_a_state_are_read_in_every_step() -> None:
    def traffic_bytes(steps: int) -> int:
        net = GraphBuilder()
        weights = [net.weight([1, 64, 16]), net.weight([1, 64, 16])]
        return features(
            net, net.node("LSTM", [net.input("x", [steps, "batch", 16]), *weights], hidden_size=16)
        ).traffic_bytes

    assert traffic_bytes(steps=9) - traffic_bytes(steps=8) == 4 * (64 * 16 + 16 + 16)


def test_attention_meets_every_key_twice() -> None:
    net = GraphBuilder()
    inputs = [net.input(name, ["batch", 8, tokens, 64]) for name, tokens in (("q", 10), ("k", 20), ("v", 20))]
    model = net.model(net.node("Attention", inputs))
    model.opset_import[0].version = 23

    counted = describe_graph(model.SerializeToString()).at_batch(2)

    assert counted.forward_macs == 2 * 8 * 10 * 20 * (64 + 64)
    assert counted.operator_counts[OperatorFamily.ATTENTION] == 1


def test_a_lookup_reads_its_rows_not_its_table() -> None:
    net = GraphBuilder()
    y = net.node("Gather", [net.weight([1_000_000, 64]), net.input("ids", ["batch", 10], TensorProto.INT64)])

    counted = features(net, y)

    assert counted.operator_counts[OperatorFamily.EMBEDDING] == 1
    assert counted.traffic_bytes == 10 * 8 + 2 * 10 * 64 * 4
    assert counted.parameters == 64_000_000


def test_views_and_constant_arithmetic_cost_nothing() -> None:
    net = GraphBuilder()
    transposed = net.node("Transpose", [net.weight([32, 64])], perm=[1, 0])
    flat = net.node("Reshape", [net.input("x", ["batch", 8, 8]), net.integers([0, 64])])
    y = net.node("MatMul", [flat, transposed])

    counted = features(net, y)

    assert counted.nodes == 1
    assert counted.parameters == 32 * 64
    assert counted.traffic_bytes == 4 * (64 + 64 * 32 + 32)


def test_shape_arithmetic_stays_on_the_host() -> None:
    net = GraphBuilder()
    x = net.input("x", ["batch", 8, 8])
    rows = net.node("Gather", [net.node("Shape", [x]), net.integers([0])])
    y = net.node("Reshape", [net.node("Relu", [x]), net.node("Concat", [rows, net.integers([64])], axis=0)])

    assert features(net, y, batch=5).nodes == 1


def test_a_weight_used_twice_is_counted_once() -> None:
    net = GraphBuilder()
    table = net.weight([100, 16])
    x = net.node("Gather", [table, net.input("ids", ["batch", 4], TensorProto.INT64)])
    y = net.node("MatMul", [x, net.node("Transpose", [table], perm=[1, 0])])

    assert features(net, y).parameters == 1600


def test_running_statistics_are_buffers() -> None:
    net = GraphBuilder()
    y = net.conv_norm(net.input("x", ["batch", 3, 8, 8]), (3, 16))

    counted = features(net, y)

    assert (counted.parameters, counted.buffers) == (3 * 16 + 2 * 16, 2 * 16)
    assert counted.buffer_bytes == 4 * 32


def test_half_precision_weights_take_half_the_bytes() -> None:
    net = GraphBuilder()
    weight = net.weight([8, 8])
    net.initializers[0].data_type = TensorProto.FLOAT16
    y = net.node("MatMul", [net.input("x", ["batch", 8], TensorProto.FLOAT16), weight])

    assert features(net, y).parameter_bytes == 128


def test_the_body_of_a_scan_counts_once_per_step() -> None:
    weight = helper.make_tensor_value_info
    step = helper.make_graph(
        [helper.make_node("MatMul", ["row", "w"], ["product"])],
        "step",
        [weight("row", TensorProto.FLOAT, None)],
        [weight("product", TensorProto.FLOAT, None)],
    )
    net = GraphBuilder()
    x = net.input("x", [7, "batch", 8])
    net.initializers.append(helper.make_tensor("w", TensorProto.FLOAT, [8, 16], [0.0] * 128))
    y = net.node("Scan", [x], body=step, num_scan_inputs=1)

    counted = features(net, y, batch=3)

    assert counted.forward_macs == 7 * 3 * 8 * 16
    assert counted.recurrent_steps == 7 - 1


def test_the_longer_branch_of_an_if_stands_for_both() -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["r"])]
    long = helper.make_graph(nodes, "long", [], [value("r", TensorProto.FLOAT, None)])
    short = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["s"])], "short", [], [value("s", TensorProto.FLOAT, None)]
    )
    net = GraphBuilder()
    net.input("x", ["batch", 8])
    net.initializers.append(helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [0.0] * 64))
    y = net.node("If", [net.input("flag", [], TensorProto.BOOL)], then_branch=short, else_branch=long)

    assert features(net, y).forward_macs == 64


def test_an_operator_without_a_known_shape_is_counted_and_named() -> None:
    net = GraphBuilder()
    strange = net.node("Mystery", [net.input("x", ["batch", 8])], domain="strange.example")
    model = net.model(net.node("MatMul", [strange, net.weight([8, 8])]))
    model.opset_import.append(helper.make_opsetid("strange.example", 1))

    description = describe_graph(model.SerializeToString())

    assert description.unshaped_nodes == 2
    assert "MatMul, Mystery" in description.warnings[0].message
