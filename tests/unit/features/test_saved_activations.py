"""Bytes that the backward pass needs, one rule at a time; every tensor here is batch x 4 x 8 x 8 floats."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from cotenant.graph_parameters import BUFFER_PREFIX
from predictor_service.features.graphs.graph_description import describe_graph
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


def test_a_number_that_takes_on_the_type_of_a_trained_tensor_is_not_trained() -> None:
    net = GraphBuilder()
    x = trained(net)
    number = net.node("CastLike", [net.scalar(0.5), x])

    assert saved_bytes(net, net.node("Mul", [x, number])) == 0


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


@pytest.mark.parametrize("gate", [("Sigmoid",), ("Softplus", "Tanh")], ids=["silu", "mish"])
def test_a_tensor_times_a_function_of_itself_keeps_the_tensor_once(gate: tuple[str, ...]) -> None:
    net = GraphBuilder()
    x = factor = trained(net)
    for operator in gate:
        factor = net.node(operator, [factor])

    assert saved_bytes(net, net.node("Mul", [factor, x])) == TENSOR_BYTES


def test_a_gate_of_another_tensor_keeps_itself_and_what_it_is_multiplied_by() -> None:
    net = GraphBuilder()
    x = trained(net)
    gate = net.node("Sigmoid", [net.conv(x, (4, 4))])

    assert saved_bytes(net, net.node("Mul", [x, gate])) == 2 * TENSOR_BYTES


def test_a_group_normalization_that_is_spelled_out_keeps_its_input_only() -> None:
    net = GraphBuilder()
    grouped = net.node("Reshape", [trained(net), net.integers([0, 2, -1])])
    ones, zeros = (net.node("Expand", [net.scalar(value), net.integers([2])]) for value in (1.0, 0.0))
    normal = net.node("InstanceNormalization", [grouped, ones, zeros])
    restored = net.node("Reshape", [normal, net.integers([-1, 4, 8, 8])])
    scaled = net.node("Mul", [restored, net.weight([4, 1, 1])])
    y = net.node("Add", [scaled, net.weight([4, 1, 1])])

    statistics_bytes = 2 * 8  # of both groups

    assert saved_bytes(net, net.node("Add", [y, y])) == TENSOR_BYTES + statistics_bytes


def test_a_layer_normalization_keeps_its_input_and_two_numbers_per_row() -> None:
    net = GraphBuilder()
    y = net.node("LayerNormalization", [trained(net), net.weight([8]), net.weight([8])], axis=-1)

    assert saved_bytes(net, y) == TENSOR_BYTES + 4 * 8 * 8


def attention(net: GraphBuilder, *, scales: int, mask: bool = False) -> str:
    """Attention over 16 places of one head of 4 channels, a head per channel of the input."""
    root = net.node("Sqrt", [net.scalar(0.5)])
    places = net.node("Reshape", [trained(net), net.integers([0, 4, 16, 4])])
    query, key, value = (net.node("MatMul", [places, net.weight([4, 4])]) for _ in range(3))
    key = net.node("Transpose", [key], perm=[0, 1, 3, 2])
    query = net.node("Mul", [query, root])
    if scales == 2:
        key = net.node("Mul", [key, root])
    scores = net.node("MatMul", [query, key])
    if mask:
        scores = net.node("Add", [scores, net.weight([16, 16])])
    return net.node("MatMul", [net.node("Softmax", [scores], axis=-1), value])


@pytest.mark.parametrize("mask", [False, True])
def test_attention_of_one_call_keeps_no_matrix_of_scores(mask: bool) -> None:
    net = GraphBuilder()
    row_bytes, scores_bytes = 4 * 16 * 4, 4 * 16 * 16 * 4
    kept = saved_bytes(net, attention(net, scales=2, mask=mask))

    assert kept == 5 * TENSOR_BYTES + row_bytes  # input, query, key, value, output
    spelled_out = GraphBuilder()
    assert saved_bytes(spelled_out, attention(spelled_out, scales=1)) == 4 * TENSOR_BYTES + scores_bytes


def test_a_power_keeps_its_base() -> None:
    net = GraphBuilder()

    assert saved_bytes(net, net.node("Pow", [trained(net), net.scalar(3.0)])) == TENSOR_BYTES


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "ReduceMean"])
def test_a_mean_keeps_nothing(operator: str) -> None:
    net = GraphBuilder()

    assert saved_bytes(net, net.node(operator, [trained(net)])) == 0


def test_resizing_keeps_nothing() -> None:
    net = GraphBuilder()
    scales = net.name("scales")
    net.initializers.append(TensorProto(name=scales, data_type=TensorProto.FLOAT, dims=[4], float_data=[1, 1, 2, 2]))

    assert saved_bytes(net, net.node("Resize", [trained(net), "", scales], mode="nearest")) == 0


def mixed_bytes(net: GraphBuilder, output: str) -> int:
    return describe_graph(net.model(output).SerializeToString()).at_batch(1).activation_bytes_saved_mixed


def test_in_mixed_precision_convolutions_keep_half_and_copy_the_image() -> None:
    net = GraphBuilder()
    y = net.conv(net.node("Relu", [trained(net)]), (4, 4))

    assert mixed_bytes(net, y) == TENSOR_BYTES // 2 + TENSOR_BYTES // 2


def test_in_mixed_precision_a_softmax_stays_wide_and_the_product_after_it_keeps_a_copy() -> None:
    net = GraphBuilder()
    weights = net.node("Softmax", [trained(net)], axis=-1)
    y = net.node("MatMul", [weights, net.weight([8, 8])])

    image_copy = TENSOR_BYTES // 2
    assert mixed_bytes(net, y) == image_copy + TENSOR_BYTES + TENSOR_BYTES // 2


def test_in_mixed_precision_a_bias_widens_nothing_and_a_table_of_positions_does() -> None:
    dense, placed = GraphBuilder(), GraphBuilder()
    narrow = dense.node("Erf", [dense.projection(trained(dense), 8, 8)])
    wide = placed.node("Erf", [placed.node("Add", [trained(placed), placed.weight([4, 8, 8])])])
    copies = TENSOR_BYTES // 2

    assert mixed_bytes(dense, narrow) == copies + TENSOR_BYTES // 2 + TENSOR_BYTES // 2
    assert mixed_bytes(placed, wide) == copies + TENSOR_BYTES


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


def test_in_mixed_precision_each_view_of_a_wide_tensor_is_copied_for_itself() -> None:
    net = GraphBuilder()
    wide = net.node("Exp", [trained(net)])
    y = net.node("MatMul", [wide, net.node("Transpose", [wide], perm=[0, 1, 3, 2])])

    image_copy = TENSOR_BYTES // 2
    assert mixed_bytes(net, y) == image_copy + TENSOR_BYTES + 2 * (TENSOR_BYTES // 2)


def test_in_mixed_precision_instance_normalization_stays_as_narrow_as_its_input() -> None:
    net = GraphBuilder()
    y = net.node("InstanceNormalization", [trained(net), net.weight([4]), net.weight([4])])

    image_copy, statistics_bytes = TENSOR_BYTES // 2, 4 * 12
    assert mixed_bytes(net, y) == image_copy + TENSOR_BYTES // 2 + statistics_bytes


def test_in_mixed_precision_recurrent_layers_keep_their_states_in_half() -> None:
    net = GraphBuilder()
    places = net.node("Reshape", [trained(net), net.integers([0, 32, 8])])
    steps = net.node("Transpose", [places], perm=[1, 0, 2])
    y = net.node("GRU", [steps, net.weight([1, 24, 8]), net.weight([1, 24, 8])], hidden_size=8)

    image_copy, states_bytes = TENSOR_BYTES // 2, 5 * TENSOR_BYTES // 2
    assert mixed_bytes(net, y) == image_copy + TENSOR_BYTES // 2 + TENSOR_BYTES // 2 + states_bytes


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_a_maximum_keeps_its_positions(operator: str) -> None:
    net = GraphBuilder()
    y = net.node(operator, [trained(net), net.integers([3])], keepdims=0)

    assert saved_bytes(net, y) == 4 * 8 * 8


def test_the_largest_few_keep_their_positions_not_their_number() -> None:
    net = GraphBuilder()
    net.node("TopK", [trained(net), net.integers([2])], outputs=2)

    assert saved_bytes(net, net.nodes[-1].output[0]) == 4 * 8 * 2 * 8


def test_the_reciprocal_of_a_root_is_kept_once() -> None:
    net = GraphBuilder()

    assert saved_bytes(net, net.node("Reciprocal", [net.node("Sqrt", [trained(net)])])) == TENSOR_BYTES


def test_a_softplus_that_is_spelled_out_keeps_its_input_and_no_comparison() -> None:
    net = GraphBuilder()
    x = trained(net)
    scaled = net.node("Mul", [x, net.scalar(1.0)])
    soft = net.node("Div", [net.node("Softplus", [scaled]), net.scalar(1.0)])
    y = net.node("Where", [net.node("Greater", [scaled, net.scalar(20.0)]), x, soft])

    assert saved_bytes(net, y) == TENSOR_BYTES


def test_a_product_with_a_buffer_keeps_nothing_and_the_buffer_is_no_parameter() -> None:
    net = GraphBuilder()
    x = trained(net)
    angles = net.weight([8, 8], prefix=f"{BUFFER_PREFIX}angles")
    described = describe_graph(net.model(net.node("Mul", [x, angles])).SerializeToString()).at_batch(1)

    assert described.activation_bytes_saved == 0
    assert described.buffer_bytes == 8 * 8 * 4
    assert described.parameters == 4 * 4


def test_in_mixed_precision_each_use_of_a_frozen_weight_keeps_a_copy_of_it() -> None:
    dense, image = GraphBuilder(), GraphBuilder()
    frozen = dense.weight([8, 8], prefix=f"{BUFFER_PREFIX}w")
    twice = dense.node("MatMul", [dense.node("MatMul", [trained(dense), frozen]), frozen])
    kernel = image.weight([4, 4, 1, 1], prefix=f"{BUFFER_PREFIX}w")
    filtered = image.node("Conv", [trained(image), kernel])

    copy = TENSOR_BYTES // 2
    assert saved_bytes(dense, twice) == 0
    assert mixed_bytes(dense, twice) == copy + 2 * (8 * 8 * 2)
    assert saved_bytes(image, filtered) == TENSOR_BYTES
    assert mixed_bytes(image, filtered) == copy + TENSOR_BYTES // 2 + 4 * 4 * 2


def test_what_a_job_holds_besides_is_a_buffer_that_no_operator_takes() -> None:
    net = GraphBuilder()
    y = net.node("Relu", [trained(net)])
    net.weight([1000], prefix=f"{BUFFER_PREFIX}held")
    described = describe_graph(net.model(y).SerializeToString()).at_batch(1)

    assert described.buffer_bytes == 4000
    assert described.parameters == 4 * 4
