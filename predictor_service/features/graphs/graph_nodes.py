"""The nodes of a model as one flat list in order of execution, subgraphs included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import AttributeProto, GraphProto, NodeProto

from predictor_service.features.graphs.graph_limits import subgraphs

AttributeValue = int | float | bytes | tuple[int, ...]

BODY_INPUTS = "BodyInputs"
"""Operator of the made-up node that hands the inputs of a Loop or Scan to its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A body runs once per element of `tensor` along `axis`."""

    tensor: str
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator.

    Attributes:
        op_type: Name of the operator.
        inputs: Tensor names; empty string = input left out.
        outputs: Tensor names. Names inside subgraphs carry the path of the subgraph.
        attributes: Numbers and strings only.
        repetitions: Loops and scans around the node, outermost first.
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    repetitions: tuple[Repetition, ...] = ()

    def input(self, slot: int) -> str:
        """Name of the tensor at an input; empty when it is left out."""
        return self.inputs[slot] if slot < len(self.inputs) else ""

    def number(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty when absent."""
        value = self.attributes.get(name, ())
        return value if isinstance(value, tuple) else ()


def flatten(graph: GraphProto) -> tuple[GraphNode, ...]:
    """Lists all nodes; of an If the branch with more nodes stands for both."""
    nodes: list[GraphNode] = []
    _flatten(graph, "", {}, (), nodes)
    return tuple(nodes)


def subgraph_prefix(prefix: str, index: int, branch: int) -> str:
    """Path of a subgraph: the one of its graph, the node's index and the number of the branch."""
    return f"{prefix}{index}.{branch}/"


def chosen_branch(node: NodeProto) -> int:
    """Index of the subgraph that is followed: the longer branch of an If, the only body of a Loop or Scan."""
    lengths = [len(inner.node) for inner in subgraphs(node)]
    return lengths.index(max(lengths))


def _flatten(
    graph: GraphProto,
    prefix: str,
    outer: Mapping[str, str],
    repetitions: tuple[Repetition, ...],
    nodes: list[GraphNode],
) -> Mapping[str, str]:
    scope = dict(outer)
    for name in (*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)):
        scope[name] = prefix + name
    for index, node in enumerate(graph.node):
        inputs = tuple(scope.get(name, name) for name in node.input)
        bodies = subgraphs(node)
        if bodies:
            branch = chosen_branch(node)
            inner_prefix = subgraph_prefix(prefix, index, branch)
            body = bodies[branch]
            if body.input:
                names = tuple(inner_prefix + value.name for value in body.input)
                nodes.append(GraphNode(op_type=BODY_INPUTS, inputs=inputs, outputs=names, attributes=_attributes(node)))
            inner_repetitions = (*repetitions, *_repetition(node, inputs))
            inner_scope = _flatten(body, inner_prefix, scope, inner_repetitions, nodes)
            inputs = (*inputs, *(inner_scope.get(value.name, value.name) for value in body.output))
        outputs = tuple(prefix + name if name else "" for name in node.output)
        scope.update(zip(node.output, outputs, strict=True))
        nodes.append(
            GraphNode(
                op_type=node.op_type,
                inputs=inputs,
                outputs=outputs,
                attributes=_attributes(node),
                repetitions=repetitions,
            )
        )
    return scope


def _repetition(node: NodeProto, inputs: tuple[str, ...]) -> tuple[Repetition, ...]:
    """A Scan runs once per element of its last input; trip counts of loops are data, so their body counts once."""
    if node.op_type != "Scan" or not inputs:
        return ()
    axes = [axis for item in node.attribute if item.name == "scan_input_axes" for axis in item.ints]
    return (Repetition(tensor=inputs[-1], axis=axes[-1] if axes else 0),)


def _attributes(node: NodeProto) -> dict[str, AttributeValue]:
    values: dict[str, AttributeValue] = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INTS:
            values[attribute.name] = tuple(attribute.ints)
        elif attribute.type == AttributeProto.INT:
            values[attribute.name] = attribute.i
        elif attribute.type == AttributeProto.FLOAT:
            values[attribute.name] = attribute.f
        elif attribute.type == AttributeProto.STRING:
            values[attribute.name] = attribute.s
    return values
