"""How large a graph may be, checked before any shape is inferred.

Inference walks nodes in C++ while holding the interpreter lock and cannot be interrupted: graphs that would keep it
busy (hundreds of thousands of nodes, functions that double 22 times, shape constants that double to megabytes) are
refused by counting, which costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from predictor_service.errors import GraphLimitError, MalformedGraphError

WEIGHTLESS: Final = "send the graph without its weights: cotenant strips them, others export with external data"
"""What to do about a graph that is too large (docs/decide.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Largest accepted sizes; the defaults leave room above any network trained on one GPU.

    Attributes:
        graph_bytes: Serialized model without weights.
        protobuf_fields: Fields looked at while weights are taken out; about a microsecond each.
        nodes: Nodes with those of subgraphs and after functions are expanded.
        functions: Functions defined by the model.
        tensors: Initializers plus graph inputs.
        rank: Dimensions of one tensor.
        dimension: Size of one dimension.
        elements: Product of the dimensions of one tensor.
        nesting: Levels of subgraphs inside each other.
        calls: Levels of functions that call each other.
        shape_values: Integers inside one shape that inference would compute element by element.
        batch: Samples per step.
    """

    graph_bytes: int = 32 << 20
    protobuf_fields: int = 600_000
    nodes: int = 20_000
    functions: int = 1_000
    tensors: int = 40_000
    rank: int = 16
    dimension: int = 1 << 40
    elements: int = 1 << 42
    nesting: int = 8
    calls: int = 100
    shape_values: int = 1 << 14
    batch: int = 1 << 20


DEFAULT_LIMITS: Final = GraphLimits()

# Attributes that must be at least 1: inference divides by some of them.
_POSITIVE_ATTRIBUTES = frozenset({"group", "strides", "dilations", "kernel_shape", "num_groups", "hidden_size"})
# Operators through which inference follows the values of integer tensors.
_KEEPS_LENGTH = frozenset(
    {"Add", "Sub", "Mul", "Div", "Cast", "Identity", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Neg", "Abs", "Where"}
)
_SHAPE_RANK_BOUND = 64


def check_graph_bytes(data: bytes, limits: GraphLimits) -> None:
    """Refuses what is empty or too long to be parsed.

    Raises:
        MalformedGraphError: No bytes at all.
        GraphLimitError: More bytes than accepted.
    """
    if not data:
        raise MalformedGraphError("the graph is empty", remedy="send the bytes of an .onnx file")
    _check("graph_bytes", len(data), limits.graph_bytes, WEIGHTLESS)


def check_model_size(model: ModelProto, limits: GraphLimits) -> None:
    """Counts nodes, functions, tensors and dimensions.

    Raises:
        GraphLimitError: A count is above its limit.
        MalformedGraphError: A dimension is negative, an attribute impossible, or functions call each other in a circle.
    """
    _check("functions", len(model.functions), limits.functions, "inline or remove unused functions")
    count_expanded_nodes(model, limits)
    for graph in walk_graphs(model.graph, limits):
        _check("tensors", len(graph.initializer) + len(graph.input), limits.tensors, "split the model")
        for tensor in graph.initializer:
            _check_dimensions(tensor.name, tensor.dims, limits)
        for value in (*graph.input, *graph.output):
            _check_dimensions(value.name, _known_dimensions(value), limits)
        for node in graph.node:
            _check_attributes(node, limits)
    _check_shape_values(model.graph, limits)


def walk_graphs(graph: GraphProto, limits: GraphLimits, depth: int = 0) -> Iterator[GraphProto]:
    """Yields the graph and its subgraphs, outermost first.

    Raises:
        GraphLimitError: Subgraphs are nested too deep.
    """
    _check("nesting", depth, limits.nesting, "flatten the control flow")
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from walk_graphs(inner, limits, depth + 1)


def subgraphs(node: NodeProto) -> Sequence[GraphProto]:
    """Graphs that a node holds as attributes (If, Loop, Scan)."""
    return [
        inner
        for attribute in node.attribute
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
        for inner in ([attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs)
    ]


def count_expanded_nodes(model: ModelProto, limits: GraphLimits) -> int:
    """Counts nodes as they will be once every function call is replaced by its body.

    Returns:
        The number of nodes, subgraphs included.

    Raises:
        GraphLimitError: More than the limit.
        MalformedGraphError: A function calls itself, directly or through others.
    """
    functions = {(function.domain, function.name): function for function in model.functions}
    counts: dict[tuple[str, str], int] = {}
    open_calls: set[tuple[str, str]] = set()

    def count(nodes: Iterable[NodeProto], depth: int) -> int:
        nesting = limits.nesting + min(len(functions), limits.calls)
        _check("nesting", depth, nesting, "flatten the control flow, and inline functions that call each other")
        total = 0
        for node in nodes:
            total += 1 + sum(count(inner.node, depth + 1) for inner in subgraphs(node))
            key = (node.domain, node.op_type)
            if key in functions:
                total += count_function(key, functions[key], depth)
            _check("nodes", total, limits.nodes, "export a smaller part of the model")
        return total

    def count_function(key: tuple[str, str], function: FunctionProto, depth: int) -> int:
        if key in open_calls:
            raise MalformedGraphError(f"function {key[1]} calls itself", remedy="ONNX functions must not recurse")
        if key not in counts:
            open_calls.add(key)
            counts[key] = count(function.node, depth + 1)
            open_calls.remove(key)
        return counts[key]

    return count(model.graph.node, 0)


def _check(name: str, value: int, limit: int, remedy: str) -> None:
    if value > limit:
        raise GraphLimitError(
            f"the graph has {name} = {value}, more than the limit of {limit}",
            remedy=remedy,
            details={"limit": name, "value": str(value), "maximum": str(limit)},
        )


def _known_dimensions(value: ValueInfoProto) -> list[int]:
    shape = value.type.tensor_type.shape
    return [dimension.dim_value for dimension in shape.dim if dimension.HasField("dim_value")]


def _check_dimensions(name: str, dimensions: Iterable[int], limits: GraphLimits) -> None:
    sizes = list(dimensions)
    _check("rank", len(sizes), limits.rank, f"look at tensor {name}")
    for size in sizes:
        if size < 0:
            raise MalformedGraphError(f"tensor {name} has dimension {size}", remedy="give it a name or a size above 0")
        _check("dimension", size, limits.dimension, f"look at tensor {name}")
    _check("elements", math.prod(sizes), limits.elements, f"look at tensor {name}")


def _check_attributes(node: NodeProto, limits: GraphLimits) -> None:
    for attribute in node.attribute:
        if attribute.name in _POSITIVE_ATTRIBUTES:
            numbers = [attribute.i] if attribute.type == AttributeProto.INT else attribute.ints
            if any(number < 1 or number > limits.dimension for number in numbers):
                raise MalformedGraphError(
                    f"{node.op_type} {node.name or node.output[:1]} has {attribute.name} = {list(numbers)}",
                    remedy="it must be at least 1",
                )
        if attribute.type == AttributeProto.TENSOR:
            _check_dimensions(f"{node.op_type}.{attribute.name}", attribute.t.dims, limits)


def _check_shape_values(graph: GraphProto, limits: GraphLimits) -> None:
    """Bounds the integer lists that inference would build while it follows shapes through the graph."""
    lengths = {tensor.name: _integer_length(tensor) for tensor in graph.initializer}
    for node in graph.node:
        length = _output_length(node, lengths)
        if length:
            _check("shape_values", length, limits.shape_values, f"look at node {node.name or node.output[0]}")
            lengths[node.output[0]] = length


def _integer_length(tensor: TensorProto) -> int:
    integer = tensor.data_type in (TensorProto.INT64, TensorProto.INT32)
    in_place = tensor.data_location != TensorProto.EXTERNAL
    return math.prod(tensor.dims) if integer and in_place and len(tensor.dims) <= 1 else 0


def _output_length(node: NodeProto, lengths: Mapping[str, int]) -> int:
    """Upper bound of the integers that inference knows about the first output; 0 = it knows none."""
    if not node.output:
        return 0
    known = [lengths.get(name, 0) for name in node.input]
    if node.op_type == "Shape":
        return _SHAPE_RANK_BOUND
    if node.op_type == "Size":
        return 1
    if node.op_type == "Constant":
        return sum(_integer_length(item.t) for item in node.attribute if item.name == "value")
    if node.op_type == "Concat":
        return sum(known) if all(known) else 0
    if node.op_type == "Gather":
        return max(known[1], 1) if len(known) > 1 and known[0] else 0
    return max(known, default=0) if node.op_type in _KEEPS_LENGTH else 0
