from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

from predictor_service.errors import InvalidBatchError, InvalidBindingError, UnboundDimensionError
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from tests.support.cases import for_each
from tests.support.onnx_graphs import GraphBuilder, bert_base, perceptron, resnet50


def codes(description: GraphDescription) -> set[str]:
    return {warning.code for warning in description.warnings}


def baked_reshape(batch: int) -> onnx.ModelProto:
    """Folds batch and tokens into one number, so that no other batch can be inferred."""
    net = GraphBuilder()
    x = net.node("Reshape", [net.input("x", [batch, 16, 64]), net.integers([batch * 16, 64])])
    return net.model(net.node("MatMul", [x, net.weight([64, 32])]))


@pytest.mark.parametrize("name", ["batch", "N", "batch_size", None])
def test_these_names_of_the_first_dimension_mean_the_batch(name: str | None) -> None:
    description = describe_graph(perceptron(batch=name).SerializeToString())

    assert description.at_batch(64).forward_macs == 64 * (784 * 512 + 512 * 10)
    assert description.warnings == ()


def test_an_unbound_name_is_refused_by_name() -> None:
    with pytest.raises(UnboundDimensionError, match=r"tokens.*set dimension_bindings\[tokens\]") as caught:
        describe_graph(bert_base(tokens="tokens").SerializeToString())

    assert caught.value.symbols == ["tokens"]


def test_an_unnamed_inner_dimension_is_refused_by_its_place() -> None:
    net = GraphBuilder()
    model = net.model(net.node("Relu", [net.input("x", ["batch", None])]))

    with pytest.raises(UnboundDimensionError, match=r"x\[1\]"):
        describe_graph(model.SerializeToString())


@for_each("size", [0, -1, 1 << 41, True, 2.5, "128"])
def test_a_binding_that_is_no_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidBindingError, match="tokens"):
        describe_graph(bert_base(tokens="tokens").SerializeToString(), {"tokens": size})


def test_a_binding_that_nothing_uses_is_reported() -> None:
    assert codes(describe_graph(perceptron().SerializeToString(), {"frames": 3})) == {"UNUSED_BINDING"}


@for_each("batch", [0, -3, (1 << 20) + 1, 10**9, 2.0, True])
def test_a_batch_out_of_range_is_refused(batch: int) -> None:
    with pytest.raises(InvalidBatchError, match="1 to 1048576"):
        describe_graph(perceptron().SerializeToString()).at_batch(batch)


@pytest.mark.parametrize("exported_batch", [1, 2, 3, 8])
def test_a_fixed_batch_is_replaced_and_reported(exported_batch: int) -> None:
    fixed = describe_graph(resnet50(batch=exported_batch).SerializeToString())
    symbolic = describe_graph(resnet50().SerializeToString())

    assert codes(fixed) == {"FIXED_BATCH"}
    assert fixed.scalars == symbolic.scalars
    assert fixed.arrays == symbolic.arrays


@pytest.mark.parametrize("exported_batch", [1, 4])
def test_a_baked_batch_is_scaled_in_proportion(exported_batch: int) -> None:
    description = describe_graph(baked_reshape(exported_batch).SerializeToString())

    assert codes(description) == {"FIXED_BATCH"}
    assert "cannot be rebound" in description.warnings[0].message
    features = description.at_batch(32)
    assert features.forward_macs == 32 * 16 * 64 * 32
    assert features.traffic_bytes == 32 * 16 * (64 + 32) * 4 + 64 * 32 * 4
    assert features.operator_traffic_bytes.sum() == features.traffic_bytes
    assert features.parameters == 64 * 32


def test_the_caller_can_say_which_batch_a_fixed_graph_was_exported_with() -> None:
    """Time-major input: the first dimension is not the batch, and two inputs disagree about it."""
    net = GraphBuilder()
    tokens = net.input("tokens", [35, 20, 64])
    state = net.input("state", [1, 20, 64])
    weights = [net.weight([1, 256, 64]), net.weight([1, 256, 64]), net.weight([1, 512])]
    data = net.model(net.node("LSTM", [tokens, *weights, "", state, state], hidden_size=64)).SerializeToString()

    reported = describe_graph(data, {"batch": 20})

    assert reported.at_batch(20).forward_macs == 20 * 35 * 2 * 256 * 64
    assert reported.at_batch(40).forward_macs == 40 * 35 * 2 * 256 * 64
    assert reported.at_batch(40).recurrent_steps == 35


def test_a_graph_without_any_batch_is_the_same_at_every_batch() -> None:
    net = GraphBuilder()
    model = net.model(net.node("Relu", [net.input("x", [])]))

    description = describe_graph(model.SerializeToString())

    assert "NO_BATCH" in codes(description)
    assert description.at_batch(1).traffic_bytes == description.at_batch(512).traffic_bytes


def test_counts_that_grow_faster_than_the_batch_are_reported() -> None:
    """Every sample is compared with every other one."""
    net = GraphBuilder()
    x = net.dense(net.input("x", ["batch", 8]), 8, 8)
    model = net.model(net.node("MatMul", [x, net.node("Transpose", [x], perm=[1, 0])]))

    assert "NOT_AFFINE" in codes(describe_graph(model.SerializeToString()))


def test_weights_among_the_inputs_are_parameters() -> None:
    model = resnet50()
    names = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    for name, dims in names.items():
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))

    description = describe_graph(model.SerializeToString())

    assert codes(description) == {"WEIGHTS_AS_INPUTS"}
    assert description.stored == describe_graph(resnet50().SerializeToString()).stored
    assert description.at_batch(2).input_bytes == 2 * 3 * 224 * 224 * 4


def test_a_graph_without_weights_is_reported() -> None:
    net = GraphBuilder()
    model = net.model(net.node("Relu", [net.input("x", ["batch", 4])]))

    assert codes(describe_graph(model.SerializeToString())) == {"NO_PARAMETERS"}


@pytest.mark.parametrize("place", [0, 1])
def test_a_network_that_hands_on_an_input_or_a_weight_keeps_its_shapes(place: int) -> None:
    # As those do that write their answers into the dictionary that they were given.
    net = GraphBuilder()
    given = [net.input("x", ["batch", 8]), net.weight([8, 4])]
    model = net.model(net.node("MatMul", given))
    model.graph.output.append(onnx.helper.make_tensor_value_info(given[place], TensorProto.FLOAT, None))

    description = describe_graph(model.SerializeToString())

    assert description.unshaped_nodes == 0
    assert description.at_batch(5).forward_macs == 5 * 8 * 4
