"""Real graphs with something broken, the same ones for the same seed: bytes flipped, fields edited, names tangled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from cotenant.graph_file import read_graph, strip_weights
from tests.support.onnx_graphs import bert_base, lstm_language_model, mobilenet_v2, resnet50

Random = np.random.Generator

DIMENSIONS = (0, -1, 1, 3, 7, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 62, -(1 << 62))
INTEGERS = (-(1 << 62), -1, 0, 1, 2, 1000, 1 << 31, 1 << 62)
OPERATORS = (
    "Add", "Relu", "Conv", "MatMul", "Gemm", "Reshape", "Concat", "Expand", "Tile", "ConstantOfShape", "Range", "Loop",
    "If", "Scan", "LSTM", "Einsum", "Resize", "Pad", "Gather", "NonZero", "Shape", "Split", "Nonsense", "",
)  # fmt: skip


@cache
def real_graphs() -> tuple[bytes, ...]:
    """The nine networks that the onnx package carries for its own tests, and four written here; no weights."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    light = [read_graph(path) for path in sorted(folder.glob("*.onnx"))]
    written = [make().SerializeToString() for make in (resnet50, mobilenet_v2, bert_base, lstm_language_model)]
    return (*light, *(strip_weights(content) for content in written))


def mutated_graphs(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yields what was done and the graph."""
    random, graphs = np.random.default_rng(seed), real_graphs()
    for number in range(count):
        source = graphs[number % len(graphs)]
        name = NAMES[int(random.integers(len(NAMES)))]
        yield name, MUTATIONS[name](source, random)


def _flip_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for place in random.integers(len(data), size=int(random.integers(1, 20))):
        changed[place] ^= 1 << int(random.integers(8))
    return bytes(changed)


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: int(random.integers(len(data)))]


def _cut_middle(data: bytes, random: Random) -> bytes:
    start, length = int(random.integers(len(data))), int(random.integers(1, 200))
    return data[:start] + data[start + length :]


def _repeat_slice(data: bytes, random: Random) -> bytes:
    start, length = int(random.integers(len(data))), int(random.integers(1, 2000))
    return data[:start] + data[start : start + length] * int(random.integers(2, 20)) + data[start + length :]


def _edited(edit: Callable[[onnx.ModelProto, Random], None]) -> Callable[[bytes, Random], bytes]:
    def mutate(data: bytes, random: Random) -> bytes:
        model = onnx.ModelProto.FromString(data)
        for _ in range(int(random.integers(1, 4))):
            edit(model, random)
        return model.SerializeToString()

    return mutate


def _edit_input_dimension(model: onnx.ModelProto, random: Random) -> None:
    values = [value for value in model.graph.input if value.type.tensor_type.shape.dim]
    if not values:
        return
    value = values[int(random.integers(len(values)))]
    dims = value.type.tensor_type.shape.dim
    dim = dims[int(random.integers(len(dims)))]
    kind = int(random.integers(3))
    if kind == 0:
        dim.dim_value = DIMENSIONS[int(random.integers(len(DIMENSIONS)))]
    elif kind == 1:
        dim.dim_param = ("batch", "frames", "", "N")[int(random.integers(4))]
    else:
        dim.Clear()


def _edit_weight_dimension(model: onnx.ModelProto, random: Random) -> None:
    weights = [weight for weight in model.graph.initializer if weight.dims]
    if weights:
        weight = weights[int(random.integers(len(weights)))]
        weight.dims[int(random.integers(len(weight.dims)))] = DIMENSIONS[int(random.integers(len(DIMENSIONS)))]


def _edit_shape_operand(model: onnx.ModelProto, random: Random) -> None:
    """Constants that decide shapes (of Reshape, ConstantOfShape, Expand ...) get absurd numbers."""
    small = [weight for weight in model.graph.initializer if weight.data_type == onnx.TensorProto.INT64]
    if not small:
        return
    weight = small[int(random.integers(len(small)))]
    values = onnx.numpy_helper.to_array(weight).copy().reshape(-1)
    if values.size:
        values[int(random.integers(values.size))] = INTEGERS[int(random.integers(len(INTEGERS)))]
        weight.CopyFrom(onnx.numpy_helper.from_array(values.reshape(tuple(weight.dims)), weight.name))


def _node(model: onnx.ModelProto, random: Random) -> onnx.NodeProto:
    if not model.graph.node:
        model.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    return model.graph.node[int(random.integers(len(model.graph.node)))]


def _edit_operator(model: onnx.ModelProto, random: Random) -> None:
    _node(model, random).op_type = OPERATORS[int(random.integers(len(OPERATORS)))]


def _edit_attribute(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if not node.attribute:
        return
    attribute = node.attribute[int(random.integers(len(node.attribute)))]
    number = INTEGERS[int(random.integers(len(INTEGERS)))]
    if attribute.ints:
        attribute.ints[int(random.integers(len(attribute.ints)))] = number
    else:
        attribute.type, attribute.i = onnx.AttributeProto.INT, number


def _drop_input(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    if node.input:
        del node.input[int(random.integers(len(node.input)))]


def _tie_cycle(model: onnx.ModelProto, random: Random) -> None:
    early, late = _node(model, random), _node(model, random)
    if early.input and late.output:
        early.input[0] = late.output[0]


def _duplicate_name(model: onnx.ModelProto, random: Random) -> None:
    one, other = _node(model, random), _node(model, random)
    if one.output and other.output:
        one.output[0] = other.output[0]


def _drop_node(model: onnx.ModelProto, random: Random) -> None:
    if model.graph.node:
        del model.graph.node[int(random.integers(len(model.graph.node)))]


def _repeat_node(model: onnx.ModelProto, random: Random) -> None:
    node = onnx.NodeProto.FromString(_node(model, random).SerializeToString())
    for number in range(int(random.integers(1, 300))):
        copy = model.graph.node.add()
        copy.CopyFrom(node)
        del copy.output[:]
        copy.output.append(f"copy_{len(model.graph.node)}_{number}")


def _edit_operator_set(model: onnx.ModelProto, random: Random) -> None:
    if model.opset_import:
        model.opset_import[0].version = (0, 1, 6, 9, 13, 99, -1)[int(random.integers(7))]


def _edit_element_type(model: onnx.ModelProto, random: Random) -> None:
    values = [*model.graph.input, *model.graph.initializer]
    value = values[int(random.integers(len(values)))]
    kind = int(random.integers(-1, 40))
    if isinstance(value, onnx.TensorProto):
        value.data_type = kind
    elif isinstance(value, onnx.ValueInfoProto):
        value.type.tensor_type.elem_type = kind


MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    "flip_bytes": _flip_bytes,
    "truncate": _truncate,
    "cut_middle": _cut_middle,
    "repeat_slice": _repeat_slice,
    "input_dimension": _edited(_edit_input_dimension),
    "weight_dimension": _edited(_edit_weight_dimension),
    "shape_operand": _edited(_edit_shape_operand),
    "operator": _edited(_edit_operator),
    "attribute": _edited(_edit_attribute),
    "drop_input": _edited(_drop_input),
    "cycle": _edited(_tie_cycle),
    "duplicate_name": _edited(_duplicate_name),
    "drop_node": _edited(_drop_node),
    "repeat_node": _edited(_repeat_node),
    "operator_set": _edited(_edit_operator_set),
    "element_type": _edited(_edit_element_type),
}
NAMES = tuple(MUTATIONS)
