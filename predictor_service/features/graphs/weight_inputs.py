"""Weights that an exporter left among the graph inputs (export_params=False of the older PyTorch exporter)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import GraphProto, ValueInfoProto

from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.tensor_roles import VIEWS, WEIGHT_SLOTS, is_parameter_type

# Between an input and the operator that takes it as weight there may be these.
_PASSED_THROUGH = VIEWS | {"Transpose", "Cast", "Slice", "Concat"}
_SCALES_AND_SHIFTS = frozenset({"Add", "Sub", "Mul", "Div"})


def find_weight_inputs(graph: GraphProto, nodes: Sequence[GraphNode]) -> frozenset[str]:
    """Names the graph inputs that are weights.

    An input is a weight when its type is floating point, all its dimensions are fixed, and every operator that it
    reaches takes it where weights sit. One-dimensional inputs that are only added or multiplied are weights when such
    inputs exist at all.

    Args:
        graph: The outermost graph.
        nodes: Its flattened nodes.
    """
    uses = _uses_by_name(nodes)
    literals = {name for node in nodes if node.op_type == "Constant" for name in node.outputs}
    literals.update(tensor.name for tensor in graph.initializer)
    candidates = {value.name: _rank(value) for value in graph.input if _may_be_weight(value)}
    found: set[str] = set()
    undecided: set[str] = set()
    for name, rank in candidates.items():
        reached = _reached_slots(name, uses)
        if reached and all(_takes_weight(node, slot, rank, literals) for node, slot in reached):
            found.add(name)
        elif rank <= 1 and reached and all(node.op_type in _SCALES_AND_SHIFTS for node, _ in reached):
            undecided.add(name)
    return frozenset(found | undecided) if found else frozenset()


def _may_be_weight(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    fixed = all(size.HasField("dim_value") for size in tensor.shape.dim)
    return tensor.HasField("shape") and fixed and is_parameter_type(tensor.elem_type)


def _rank(value: ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _uses_by_name(nodes: Sequence[GraphNode]) -> Mapping[str, list[tuple[GraphNode, int]]]:
    uses: dict[str, list[tuple[GraphNode, int]]] = {}
    for node in nodes:
        for slot, name in enumerate(node.inputs):
            uses.setdefault(name, []).append((node, slot))
    return uses


def _reached_slots(name: str, uses: Mapping[str, list[tuple[GraphNode, int]]]) -> list[tuple[GraphNode, int]]:
    """Operators that take the tensor, seen through views and casts."""
    reached: list[tuple[GraphNode, int]] = []
    waiting, seen = [name], {name}
    while waiting:
        for node, slot in uses.get(waiting.pop(), ()):
            if node.op_type in _PASSED_THROUGH:
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                waiting.extend(fresh)
            else:
                reached.append((node, slot))
    return reached


def _takes_weight(node: GraphNode, slot: int, rank: int, literals: set[str]) -> bool:
    if slot not in WEIGHT_SLOTS.get(node.op_type, frozenset()):
        return False
    if node.op_type == "MatMul":
        return rank == 2
    if node.op_type == "Gather":  # a table is looked up by data; picking a fixed position is not a lookup
        return rank == 2 and node.input(1) not in literals
    return True
