"""Graphs that no user would train: each breaks one rule, or costs far more to understand than to send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.support.onnx_graphs import IR_VERSION, OPSET, perceptron


def hostile_graphs() -> Mapping[str, Callable[[], bytes]]:
    """Makers of hostile graphs by what is wrong with them."""
    return {
        "empty": lambda: b"",
        "random_bytes": lambda: bytes(range(7, 256)) * 40,
        "truncated": lambda: perceptron().SerializeToString()[:-40],
        "no_graph": lambda: b"\x08\x0a",
        "cyclic": lambda: _model([("Add", ["x", "b"], ["a"]), ("Relu", ["a"], ["b"])], "b"),
        "unsorted": lambda: _model([("Relu", ["a"], ["b"]), ("Relu", ["x"], ["a"])], "b"),
        "dangling": lambda: _model([("Add", ["x", "nowhere"], ["b"])], "b"),
        "missing_output": lambda: _model([("Relu", ["x"], ["b"])], "nowhere"),
        "duplicate_output": lambda: _model([("Relu", ["x"], ["b"]), ("Tanh", ["x"], ["b"])], "b"),
        "operator_set_99": lambda: _model([("Relu", ["x"], ["b"])], "b", opset=99),
        "no_operator_set": lambda: _without_opsets(_model([("Relu", ["x"], ["b"])], "b")),
        "negative_dimension": lambda: _model([("Relu", ["x"], ["b"])], "b", dims=["batch", -4]),
        "dimension_of_2_to_62": lambda: _model([("Relu", ["x"], ["b"])], "b", dims=["batch", 1 << 62]),
        "product_of_dimensions": lambda: _model([("Relu", ["x"], ["b"])], "b", dims=["batch", 1 << 30, 1 << 30]),
        "group_of_0": lambda: _convolution(group=0),
        "stride_of_0": lambda: _convolution(strides=[0, 0]),
        "negative_kernel": lambda: _convolution(kernel_shape=[-3, -3]),
        "concat_doubling": concat_doubling,
        "doubling_functions": doubling_functions,
        "recursive_function": recursive_function,
        "functions_900_deep": lambda: nested_functions(900),
        "padded_to_less_than_nothing": lambda: _pad(-100),
        "function_defined_twice": function_defined_twice,
        "many_nodes": many_nodes,
        "custom_operator": lambda: _model([("Mystery", ["x"], ["b"])], "b", domain="strange.example"),
        "nested_branches": lambda: nested_branches(20),
        "unbound_dimension": lambda: _model([("Relu", ["x"], ["b"])], "b", dims=["batch", "frames"]),
        "split_of_nothing": lambda: _sequence([("SplitToSequence", [], ["s"]), ("SequenceAt", ["s", "i"], ["y"])], i=0),
    }


def answerable_graphs() -> Mapping[str, Callable[[], bytes]]:
    """Makers of odd graphs that need not be refused, only answered in bounded time."""
    split = ("SplitToSequence", ["x"], ["s"])
    return {
        "constant_of_shape_2_to_33": constant_of_shape,
        "external_data_outside": external_data_outside,
        "constant_without_output": lambda: _model(
            [("Constant", [], [], {"value_int": 3}), ("Relu", ["x"], ["y"])], "y"
        ),
        "piece_without_output": lambda: _sequence([split, ("SequenceAt", ["s", "i"], []), ("Relu", ["x"], ["y"])], i=0),
        "piece_beyond_64_bits": lambda: _sequence([split, ("SequenceAt", ["s", "i"], ["y"])], i=(1 << 63) - 1),
        "reshape_to_text": lambda: _reshape(TensorProto(data_type=TensorProto.STRING, string_data=[b"a", b"b"])),
        "reshape_to_cut_off_numbers": lambda: _reshape(TensorProto(data_type=TensorProto.INT64, raw_data=bytes(8))),
        "fill_by_cut_off_numbers": fill_by_cut_off_numbers,
    }


def many_nodes(count: int = 200_000) -> bytes:
    """A chain of ReLUs."""
    names = ["x", *(f"t{index}" for index in range(count))]
    return _model([("Relu", [before], [after]) for before, after in pairwise(names)], names[-1])


def concat_doubling(doublings: int = 22) -> bytes:
    """A shape of two numbers, joined with itself until it has 2^22."""
    nodes: list[Any] = [("Shape", ["x"], ["s0"])]
    nodes += [("Concat", [f"s{i}", f"s{i}"], [f"s{i + 1}"], {"axis": 0}) for i in range(doublings)]
    return _model([*nodes, ("Cast", [f"s{doublings}"], ["y"], {"to": 1})], "y")


def constant_of_shape() -> bytes:
    """Two kilobytes that stand for 2^33 integers, added up into a matrix product."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 33])
    nodes = [("ConstantOfShape", ["shape"], ["huge"]), ("ReduceSum", ["huge"], ["sum"]), ("Add", ["x", "sum"], ["y"])]
    return _model(nodes, "y", initializers=[shape])


def external_data_outside() -> bytes:
    """A weight that claims to be a file of the system."""
    weight = TensorProto(name="w", dims=[4, 4], data_type=1, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="../../../../etc/passwd")
    return _model([("MatMul", ["x", "w"], ["y"])], "y", initializers=[weight])


def doubling_functions(levels: int = 22) -> bytes:
    """Functions that call the one before twice: 2^22 nodes in a few hundred bytes."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    functions = []
    for level in range(levels):
        call = f"F{level - 1}" if level else "Relu"
        domain = "local" if level else ""
        body = [
            helper.make_node(call, ["a"], ["m"], domain=domain),
            helper.make_node(call, ["m"], ["z"], domain=domain),
        ]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["z"], body, opsets))
    return _model([(f"F{levels - 1}", ["x"], ["y"], {"domain": "local"})], "y", functions=functions)


def nested_functions(levels: int) -> bytes:
    """Functions of which each calls the one before."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    functions = []
    for level in range(levels):
        call, domain = (f"F{level - 1}", "local") if level else ("Relu", "")
        body = [helper.make_node(call, ["a"], ["z"], domain=domain)]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["z"], body, opsets))
    return _model([(f"F{levels - 1}", ["x"], ["y"], {"domain": "local"})], "y", functions=functions)


def recursive_function() -> bytes:
    """A function that calls itself."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    body = [helper.make_node("F", ["a"], ["z"], domain="local")]
    function = helper.make_function("local", "F", ["a"], ["z"], body, opsets)
    return _model([("F", ["x"], ["y"], {"domain": "local"})], "y", functions=[function])


def function_defined_twice() -> bytes:
    """Two functions of one name."""
    opsets = [helper.make_opsetid("", OPSET)]
    functions = [
        helper.make_function("local", "F", ["a"], ["z"], [helper.make_node(name, ["a"], ["z"])], opsets)
        for name in ("Relu", "Tanh")
    ]
    return _model([("F", ["x"], ["y"], {"domain": "local"})], "y", functions=functions)


def fill_by_cut_off_numbers() -> bytes:
    """A weight of a shape that has one number of its two."""
    shape = TensorProto(name="shape", data_type=TensorProto.INT64, dims=[2], raw_data=bytes(8))
    return _model([("ConstantOfShape", ["shape"], ["w"]), ("MatMul", ["x", "w"], ["y"])], "y", initializers=[shape])


def nested_branches(depth: int) -> bytes:
    """If inside If inside If; the other branches are left out."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["leaf"])], "leaf", [], [_value("leaf")])
    for level in range(depth):
        node = helper.make_node("If", ["condition"], [f"b{level}"], then_branch=inner)
        inner = helper.make_graph([node], f"g{level}", [], [_value(f"b{level}")])
    inner.input.append(_value("x", ["batch", 4]))
    inner.initializer.append(helper.make_tensor("condition", TensorProto.BOOL, [], [True]))
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(inner, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()


def _convolution(**attributes: Any) -> bytes:
    weight = TensorProto(name="w", dims=[8, 4, 3, 3], data_type=1, data_location=TensorProto.EXTERNAL)
    nodes = [("Conv", ["x", "w"], ["y"], attributes)]
    return _model(nodes, "y", dims=["batch", 4, 9, 9], initializers=[weight])


def _pad(columns: int) -> bytes:
    pads = helper.make_tensor("pads", TensorProto.INT64, [4], [0, 0, 0, columns])
    return _model([("Pad", ["x", "pads"], ["p"]), ("Relu", ["p"], ["y"])], "y", initializers=[pads])


def _sequence(nodes: Sequence[Any], i: int) -> bytes:
    return _model(nodes, "y", initializers=[helper.make_tensor("i", TensorProto.INT64, [], [i])])


def _reshape(target: TensorProto) -> bytes:
    """A graph with a fixed batch, reshaped to two sizes that are none."""
    target.name = "target"
    target.dims.append(2)
    return _model(
        [("Reshape", ["x", "target"], ["r"]), ("Relu", ["r"], ["y"])], "y", dims=[8, 4], initializers=[target]
    )


def _value(name: str, dims: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def _without_opsets(data: bytes) -> bytes:
    model = onnx.ModelProto.FromString(data)
    del model.opset_import[:]
    return model.SerializeToString()


def _model(
    nodes: Sequence[Any],
    output: str,
    *,
    dims: Sequence[int | str] = ("batch", 4),
    opset: int = OPSET,
    domain: str = "",
    initializers: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    made = [
        helper.make_node(entry[0], entry[1], entry[2], **{"domain": domain, **(entry[3] if len(entry) > 3 else {})})
        for entry in nodes
    ]
    graph = helper.make_graph(made, "hostile", [_value("x", dims)], [_value(output)], initializers)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("local", 1)] if functions else [])]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=IR_VERSION)
    return model.SerializeToString()
