"""What is rewritten before shapes are inferred: constant arithmetic, sequences of pieces, nodes with unused outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from predictor_service.features.graphs.constant_folding import ELEMENTS_MAX, fold_small_constants
from predictor_service.features.graphs.dead_nodes import drop_dead_nodes
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.graphs.omitted_outputs import name_omitted_outputs
from predictor_service.features.graphs.split_sequences import unroll_split_sequences
from tests.support.cases import for_each


def graph_of(*nodes: NodeProto, outputs: Sequence[str] = ("y",), **constants: object) -> GraphProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 12, 8])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    return helper.make_graph(list(nodes), "g", given, made, tensors)


def test_arithmetic_on_small_whole_numbers_becomes_constants() -> None:
    graph = graph_of(
        helper.make_node("Sub", ["four", "one"], ["three"]),
        helper.make_node("Range", ["one", "three", "one"], ["axes"]),
        helper.make_node("Unsqueeze", ["x", "axes"], ["y"]),
        one=1,
        four=4,
    )
    known = fold_small_constants(graph)
    assert known["axes"].tolist() == [1, 2]
    assert [node.op_type for node in graph.node] == ["Constant", "Constant", "Unsqueeze"]


def test_what_is_made_of_counted_positions_is_counted_where_the_count_begins_at_a_float() -> None:
    # As PyTorch exports `torch.arange(24)`, of which positions and times of diffusion are embedded.
    def literal(name: str, value: object) -> NodeProto:
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))

    graph = graph_of(
        literal("zero", np.float32(0)),
        literal("one", np.float32(1)),
        literal("end", np.int64(24)),
        helper.make_node("CastLike", ["zero", "end"], ["start"]),
        helper.make_node("CastLike", ["one", "end"], ["step"]),
        helper.make_node("Range", ["start", "end", "step"], ["positions"]),
        helper.make_node("Cast", ["positions"], ["table"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=1),
        helper.make_node("Mul", ["mean", "table"], ["angles"]),
        helper.make_node("MatMul", ["angles", "weight"], ["y"]),
        axes=[2],
        weight=np.zeros((24, 5), dtype=np.float32),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    described = describe_graph(model.SerializeToString())
    assert described.unshaped_nodes == 0
    assert described.at_batch(3).forward_macs == 3 * 12 * 24 * 5


@for_each(
    "node",
    [
        helper.make_node("Range", ["zero", "huge", "one"], ["y"]),
        helper.make_node("Range", ["zero", "huge", "zero"], ["y"]),
        helper.make_node("Expand", ["one", "huge_shape"], ["y"]),
        helper.make_node("Reshape", ["one", "huge_shape"], ["y"]),
        helper.make_node("Concat", ["one", "one"], ["y"], axis=7),
        helper.make_node("Mul", ["x", "one"], ["y"]),
        helper.make_node("Add", ["one"], ["y"]),
    ],
)
def test_what_is_large_broken_or_depends_on_the_input_is_left_alone(node: NodeProto) -> None:
    graph = graph_of(node, zero=0, one=1, huge=2**62, huge_shape=[2**31, 2**31])
    before = graph.node[0].SerializeToString()
    known = fold_small_constants(graph)
    assert "y" not in known
    assert graph.node[0].SerializeToString() == before
    assert all(value.size <= ELEMENTS_MAX for value in known.values())


@pytest.mark.parametrize(
    ("split", "axis", "expected"),
    [(np.int64(4), 1, [4, 8, 1]), (np.array([3, 7, 2]), 1, [3, 10, 1]), (np.array([6, 6]), -2, [6, 12, -2])],
    ids=["equal pieces", "pieces of given sizes", "an axis from the end"],
)
def test_a_piece_of_a_sequence_becomes_a_slice(split: object, axis: int, expected: list[int]) -> None:
    graph = graph_of(
        helper.make_node("SplitToSequence", ["x", "split"], ["pieces"], axis=axis),
        helper.make_node("SequenceAt", ["pieces", "second"], ["y"]),
        split=split,
        second=np.int64(1),
    )
    assert unroll_split_sequences(graph, fold_small_constants(graph)) == 1
    drop_dead_nodes(graph)
    [cut] = graph.node
    values = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    assert cut.op_type == "Slice"
    assert [values[name][0] for name in cut.input[1:]] == expected


def test_a_slice_gives_the_shape_that_the_piece_has() -> None:
    graph = graph_of(
        helper.make_node("SplitToSequence", ["x", "split"], ["pieces"], axis=1),
        helper.make_node("SequenceAt", ["pieces", "last"], ["y"]),
        split=np.int64(5),
        last=np.int64(2),
    )
    unroll_split_sequences(graph, fold_small_constants(graph))
    drop_dead_nodes(graph)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    assert [size.dim_value for size in inferred.graph.output[0].type.tensor_type.shape.dim][1:] == [2, 8]


def test_a_piece_at_a_place_that_depends_on_the_input_is_left_alone() -> None:
    graph = graph_of(
        helper.make_node("SplitToSequence", ["x", "split"], ["pieces"], axis=1),
        helper.make_node("SequenceLength", ["pieces"], ["length"]),
        helper.make_node("Sub", ["length", "one"], ["last"]),
        helper.make_node("SequenceAt", ["pieces", "last"], ["y"]),
        split=np.int64(4),
        one=np.int64(1),
    )
    assert unroll_split_sequences(graph, fold_small_constants(graph)) == 0
    assert graph.node[3].op_type == "SequenceAt"


def test_nodes_that_no_output_needs_are_left_out_and_bodies_keep_what_they_capture() -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["captured"], ["b"])], "b", [], [helper.make_tensor_value_info("b", 1, None)]
    )
    graph = graph_of(
        helper.make_node("Abs", ["x"], ["captured"]),
        helper.make_node("Exp", ["x"], ["unread"]),
        helper.make_node("Log", ["unread"], ["unread_too"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
        flag=np.array(True),
    )
    assert drop_dead_nodes(graph) == 2
    assert [node.op_type for node in graph.node] == ["Abs", "If"]


@pytest.mark.parametrize("order", [(1, 0), (0, 1)], ids=["out of order", "in order"])
def test_a_graph_out_of_order_is_left_for_the_checks_behind(order: tuple[int, int]) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    graph = graph_of(*(nodes[index] for index in order), helper.make_node("Log", ["x"], ["unread"]))
    assert drop_dead_nodes(graph) == (1 if order == (0, 1) else 0)


def test_a_weight_cut_at_places_computed_from_shapes_is_counted_as_a_weight() -> None:
    """The older form of an exporter's LSTM: gates are put into another order at offsets read from the state."""
    hidden, width = 16, 8
    nodes = [
        helper.make_node("Shape", ["state"], ["offset"], start=2, end=3),
        helper.make_node("Slice", ["weight", "zero", "offset", "zero"], ["first"]),
        helper.make_node("Slice", ["weight", "offset", "end", "zero"], ["rest"]),
        helper.make_node("Concat", ["rest", "first"], ["ordered"], axis=0),
        helper.make_node("Transpose", ["ordered"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width]),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, "batch", hidden]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.zeros((4 * hidden, width), dtype=np.float32), "weight"),
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([4 * hidden]), "end"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    features = describe_graph(model.SerializeToString()).at_batch(1)
    assert features.parameters == 4 * hidden * width
    assert features.forward_macs == 4 * hidden * width


def test_a_bias_of_zeros_that_an_exporter_fills_in_is_no_weight_and_costs_nothing() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Shape", ["weight"], ["channels"], start=0, end=1),
            helper.make_node("CastLike", ["zero", "x"], ["cast"]),
            helper.make_node("Expand", ["cast", "channels"], ["bias"]),
            helper.make_node("Conv", ["x", "weight", "bias"], ["y"], kernel_shape=[3, 3]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.zeros((5, 3, 3, 3), dtype=np.float32), "weight"),
            numpy_helper.from_array(np.array(0, dtype=np.float32), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    description = describe_graph(model.SerializeToString())
    assert description.at_batch(2).parameters == 5 * 27
    assert description.unshaped_nodes == 0


@for_each("cell, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_layer_costs_as_much_where_only_its_last_state_is_read(cell: str, gates: int) -> None:
    """As PyTorch exports `_, last = gru(x)`: the states of all steps have no name."""

    def describe(first: str) -> tuple[int, int, int, int]:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [9, "batch", 16])]
        outputs = [helper.make_tensor_value_info("last", TensorProto.FLOAT, None)]
        weights = [
            numpy_helper.from_array(np.zeros((2, gates * 32, width), np.float32), name)
            for name, width in (("w", 16), ("r", 32))
        ]
        node = helper.make_node(cell, ["x", "w", "r"], [first, "last"], hidden_size=32, direction="bidirectional")
        graph = helper.make_graph([node], "g", inputs, outputs, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        found = describe_graph(model.SerializeToString())
        assert found.warnings == ()
        counted = found.at_batch(4)
        saved, steps = counted.activation_bytes_saved, counted.recurrent_steps
        return counted.forward_macs, saved, steps, found.unshaped_nodes

    macs, saved, steps, unshaped = describe("")
    assert macs == 9 * 4 * 2 * gates * 32 * (16 + 32)
    assert (steps, unshaped) == (18, 0)
    assert saved > 9 * 4 * 2 * 32 * 4
    assert describe("") == describe("all")


def test_an_omitted_output_takes_no_name_that_the_graph_has() -> None:
    graph = graph_of(
        helper.make_node("TopK", ["x", "k"], ["", "y"]),
        helper.make_node("Relu", ["x"], ["omitted output 0"]),
        k=[2],
    )
    assert name_omitted_outputs(graph) == 1
    assert list(graph.node[0].output) == ["omitted output 0'", "y"]
    assert name_omitted_outputs(graph) == 0
