"""Leaves out nodes that no output needs: an exporter that does not optimize writes results that no node reads."""

from __future__ import annotations

from onnx import GraphProto, NodeProto

from predictor_service.features.graphs.graph_limits import subgraphs


def drop_dead_nodes(graph: GraphProto) -> int:
    """Remove, in place, the nodes of a graph that none of its outputs depends on.

    Args:
        graph: Nodes in order of execution. One without outputs, or out of order, is left as it is: later checks
            report what is wrong with it.

    Returns:
        Number of nodes removed.
    """
    needed = {value.name for value in graph.output}
    live: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            live.append(node)
            needed.update(node.input)
            needed.update(_captured_names(node))
    dead = len(graph.node) - len(live)
    if not live or dead == 0 or not _is_ordered(graph):
        return 0
    kept = [NodeProto.FromString(node.SerializeToString()) for node in reversed(live)]
    del graph.node[:]
    graph.node.extend(kept)
    return dead


def _captured_names(node: NodeProto) -> set[str]:
    """Everything that the bodies of a node read, their own tensors included."""
    names: set[str] = set()
    waiting = list(subgraphs(node))
    while waiting:
        body = waiting.pop()
        names.update(value.name for value in body.output)
        for inner in body.node:
            names.update(inner.input)
            waiting.extend(subgraphs(inner))
    return names


def _is_ordered(graph: GraphProto) -> bool:
    """Whether no node reads what a later node makes."""
    made = {name for node in graph.node for name in node.output if name}
    seen: set[str] = set()
    for node in graph.node:
        if any(name in made and name not in seen for name in node.input):
            return False
        seen.update(node.output)
    return True
