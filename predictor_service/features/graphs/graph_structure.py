"""Is it a graph at all? Inference itself accepts cycles, dangling and duplicate names, so this is checked here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import GraphProto, ModelProto, NodeProto, defs

from predictor_service.errors import MalformedGraphError, UnsupportedGraphError
from predictor_service.features.graphs.graph_limits import subgraphs

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})


def check_structure(model: ModelProto) -> None:
    """Checks operator sets, single assignment, order and completeness of the graph and its subgraphs.

    Raises:
        UnsupportedGraphError: An operator set newer than the installed onnx knows.
        MalformedGraphError: No nodes, a cycle, a wrong order, an undefined or twice defined name, or a domain without
            an imported operator set.
    """
    _check_opsets(model)
    if not model.graph.node:
        raise MalformedGraphError("the graph has no nodes", remedy="export the model again")
    domains = {entry.domain for entry in model.opset_import} | STANDARD_DOMAINS
    _check_graph(model.graph, [], domains)


def _check_opsets(model: ModelProto) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    if not versions:
        raise MalformedGraphError("no standard operator set is imported", remedy="set opset_import in the model")
    if len({entry.domain or "ai.onnx" for entry in model.opset_import}) != len(model.opset_import):
        raise MalformedGraphError("an operator set is imported twice", remedy="keep one version per domain")
    newest = defs.onnx_opset_version()
    if not 1 <= versions[0] <= newest:
        raise UnsupportedGraphError(
            f"operator set {versions[0]} is outside 1 to {newest}",
            remedy=f"export with opset_version={min(20, newest)}",
        )


def _check_graph(graph: GraphProto, outer: Sequence[set[str]], domains: set[str]) -> None:
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    defined |= {tensor.values.name for tensor in graph.sparse_initializer}
    scopes = [*outer, defined]
    for node in graph.node:
        _check_domain(node, domains)
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                raise _undefined(graph, name, node.op_type)
        for inner in subgraphs(node):
            _check_graph(inner, scopes, domains)
        _define(node.output, defined)
    for value in graph.output:
        if not any(value.name in scope for scope in scopes):
            raise MalformedGraphError(f"graph output {value.name} is produced by no node", remedy="export again")


def _check_domain(node: NodeProto, domains: set[str]) -> None:
    if node.domain not in domains:
        raise MalformedGraphError(
            f"operator {node.op_type} is of domain {node.domain!r}, which the model does not import",
            remedy="add the domain to opset_import",
        )


def _define(names: Iterable[str], defined: set[str]) -> None:
    for name in names:
        if name in defined:
            raise MalformedGraphError(f"tensor {name} is defined twice", remedy="every name needs one producer")
        if name:
            defined.add(name)


def _undefined(graph: GraphProto, name: str, op_type: str) -> MalformedGraphError:
    if not any(name in node.output for node in graph.node):
        return MalformedGraphError(f"input {name} of {op_type} is produced by no node", remedy="export the model again")
    if _is_cyclic(graph):
        return MalformedGraphError(f"the graph has a cycle through {name}", remedy="ONNX graphs must be acyclic")
    return MalformedGraphError(
        f"input {name} of {op_type} is produced by a later node", remedy="sort the nodes topologically"
    )


def _is_cyclic(graph: GraphProto) -> bool:
    """Kahn's algorithm: what cannot be peeled off from the inputs lies on or behind a cycle."""
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output}
    consumers: list[list[int]] = [[] for _ in graph.node]
    waiting = [0] * len(graph.node)
    for index, node in enumerate(graph.node):
        for name in node.input:
            if name in producer:
                consumers[producer[name]].append(index)
                waiting[index] += 1
    ready = [index for index, count in enumerate(waiting) if count == 0]
    peeled = 0
    while ready:
        peeled += 1
        for consumer in consumers[ready.pop()]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)
    return peeled < len(graph.node)
