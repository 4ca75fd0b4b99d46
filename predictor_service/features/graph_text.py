"""Are all names text? Protobuf's reader hands broken UTF-8 on as bytes, which no later code expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from predictor_service.errors import MalformedGraphError
from predictor_service.features.graph_limits import GraphLimits, walk_graphs


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
