"""From bytes to a checked ONNX model without weights and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, inliner
from onnx.checker import ValidationError

from cotenant.graph_file import GraphFileError, GraphTooLargeError, graph_sha256, strip_weights
from predictor_service.errors import GraphLimitError, MalformedGraphError
from predictor_service.features.graphs.graph_limits import GraphLimits, check_graph_bytes, check_model_size, walk_graphs
from predictor_service.features.graphs.graph_structure import check_structure


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A checked model and the name of its content.

    Attributes:
        model: Functions inlined; weights absent, their dimensions present.
        graph_sha256: Hash of the stripped bytes as the client sends them, 64 hexadecimal digits.
    """

    model: ModelProto
    graph_sha256: str


def read_graph_bytes(data: bytes, limits: GraphLimits) -> OnnxGraph:
    """Parses and checks an ONNX model, cheapest checks first.

    Args:
        data: Serialized model, with or without weights.
        limits: Largest accepted sizes.

    Raises:
        MalformedGraphError: Not ONNX, or not a graph.
        UnsupportedGraphError: An operator set that this version does not know.
        GraphLimitError: Larger than the limits.
    """
    check_graph_bytes(data, limits)
    try:
        stripped = strip_weights(data, node_limit=limits.nodes, field_limit=limits.protobuf_fields)
        model = ModelProto.FromString(stripped)
    except GraphTooLargeError as error:
        raise GraphLimitError(str(error), remedy="export a smaller part of the model") from None
    except GraphFileError as error:
        raise MalformedGraphError(str(error), remedy="send the bytes of an .onnx file; export it again") from None
    except DecodeError:
        raise MalformedGraphError("the bytes are not an ONNX model", remedy="send the bytes of an .onnx file") from None
    check_text(model, limits)
    check_model_size(model, limits)
    check_structure(model)
    if model.functions:
        model = _inline_functions(model)
        check_model_size(model, limits)
        check_structure(model)
    return OnnxGraph(model=model, graph_sha256=graph_sha256(stripped))


def _inline_functions(model: ModelProto) -> ModelProto:
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, ValidationError) as error:  # how the C++ inliner reports broken functions
        raise MalformedGraphError(
            f"a function of the model cannot be expanded: {error}", remedy="export the model without functions"
        ) from None


def check_text(model: ModelProto, limits: GraphLimits) -> None:
    """Checks every name that later steps use.

    Raises:
        MalformedGraphError: A name is not UTF-8.
        GraphLimitError: Subgraphs are nested too deep.
    """
    for graph in walk_graphs(model.graph, limits):
        _require_text(_graph_names(graph))
    for function in model.functions:
        _require_text((function.name, function.domain, *function.input, *function.output))
        for node in function.node:
            _require_text(_node_names(node))
    _require_text(entry.domain for entry in model.opset_import)


def _require_text(names: Iterable[str]) -> None:
    try:
        "".join(names)
    except TypeError:
        raise MalformedGraphError("a name in the graph is not UTF-8", remedy="export the model again") from None


def _graph_names(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from _node_names(node)
    for tensor in graph.initializer:
        yield tensor.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from _value_names(value)


def _node_names(node: NodeProto) -> Iterator[str]:
    yield node.name
    yield node.op_type
    yield node.domain
    yield from node.input
    yield from node.output
    for attribute in node.attribute:
        yield attribute.name


def _value_names(value: ValueInfoProto) -> Iterator[str]:
    yield value.name
    for size in value.type.tensor_type.shape.dim:
        yield size.dim_param
