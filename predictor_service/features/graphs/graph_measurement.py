"""Counts everything in a graph at one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto

from predictor_service.errors import GraphLimitError
from predictor_service.features.graphs.fused_operators import Kept, find_fused
from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.operator_costs import (
    OperatorCost,
    classify,
    measure_operator,
    sequence_length,
    unfolded_bytes,
)
from predictor_service.features.graphs.operator_families import FAMILY_OF, MULTIPLYING_FAMILIES, OperatorFamily
from predictor_service.features.graphs.saved_activations import saved_activation_bytes
from predictor_service.features.graphs.shape_inference import ShapeTable, TensorShape
from predictor_service.features.graphs.tensor_roles import TensorRoles, assign_roles, is_parameter_type

_LARGEST_COUNT = 1 << 62
_NO_COST = OperatorCost(macs=0, flops=0, traffic_bytes=0, constant_bytes=0, output_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStructure:
    """What does not depend on the batch.

    Attributes:
        nodes: All nodes, flattened, in order of execution.
        roles: Roles of their tensors.
        fused: What operators keep that PyTorch computes in one piece, by index of their nodes.
        data_inputs: Names of the graph inputs with data.
        outputs: Names of the graph outputs.
    """

    nodes: tuple[GraphNode, ...]
    roles: TensorRoles
    fused: Mapping[int, Kept]
    data_inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything counted at one batch; lists have one entry per device node.

    Attributes:
        families: Family of each device node.
        costs: Cost of each device node, repetitions included; zeros where a shape is missing.
        totals: Scalars that may depend on the batch, by name.
        unshaped: Indices of device nodes without a known cost.
        broken_reshapes: Reshapes whose input and output differ in size: a baked-in batch.
    """

    families: tuple[OperatorFamily, ...]
    costs: tuple[OperatorCost, ...]
    totals: Mapping[str, int]
    unshaped: tuple[int, ...]
    broken_reshapes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Numbers stored between steps.

    Attributes:
        parameters: Trained elements.
        parameter_bytes: Their size as exported.
        buffers: Elements of running statistics.
        buffer_bytes: Their size as exported.
    """

    parameters: int
    parameter_bytes: int
    buffers: int
    buffer_bytes: int


def read_structure(
    graph: GraphProto, nodes: tuple[GraphNode, ...], weights: frozenset[str], data_inputs: tuple[str, ...]
) -> GraphStructure:
    """Works out the roles of all tensors.

    Args:
        graph: The outermost graph.
        nodes: Its flattened nodes.
        weights: Graph inputs that are weights.
        data_inputs: The other graph inputs that are not initializers.
    """
    stored = {
        tensor.name: is_parameter_type(tensor.data_type) and TensorShape(tuple(tensor.dims), 1).elements > 1
        for tensor in graph.initializer
    }
    stored.update({tensor.values.name: True for tensor in graph.sparse_initializer})
    stored.update(dict.fromkeys(weights, True))
    roles = assign_roles(nodes, stored)
    return GraphStructure(
        nodes=nodes,
        roles=roles,
        fused=find_fused(nodes, roles),
        data_inputs=data_inputs,
        outputs=tuple(value.name for value in graph.output),
    )


def measure_graph(structure: GraphStructure, table: ShapeTable) -> Measurement:
    """Counts cost, traffic, saved activations, inputs and outputs.

    Args:
        structure: The graph.
        table: Shapes at one batch.

    Raises:
        GraphLimitError: A count does not fit 62 bits.
    """
    device_nodes = [structure.nodes[index] for index in structure.roles.device_nodes]
    families = tuple(classify(node, structure.roles.constants, table) for node in device_nodes)
    costs, unshaped = [], []
    for position, (node, family) in enumerate(zip(device_nodes, families, strict=True)):
        cost = measure_operator(node, family, structure.roles.constants, table)
        if cost is None:
            unshaped.append(position)
        costs.append(_NO_COST if cost is None else _repeated(cost, node, table))
    saved = saved_activation_bytes(structure.nodes, structure.roles, structure.fused, table)
    totals = {
        "forward_macs": sum(cost.macs for cost in costs),
        "forward_flops": sum(cost.flops for cost in costs),
        "traffic_bytes": sum(cost.traffic_bytes for cost in costs),
        "activation_bytes_saved": saved.exported,
        "activation_bytes_saved_mixed": saved.mixed,
        "input_bytes": _total_bytes(structure.data_inputs, table),
        "output_bytes": _total_bytes(structure.outputs, table),
        "largest_unfolded_bytes": max((unfolded_bytes(node, table) for node in device_nodes), default=0),
        "recurrent_steps": sum(_waiting_steps(node, table) for node in device_nodes),
        "lstm_steps": sum(_waiting_steps(node, table) for node in device_nodes if node.op_type == "LSTM"),
    }
    if max(totals.values()) > _LARGEST_COUNT:
        raise GraphLimitError("the graph's cost exceeds 2^62", remedy="look at the dimension bindings")
    return Measurement(
        families=families,
        costs=tuple(costs),
        totals=totals,
        unshaped=tuple(unshaped),
        broken_reshapes=_count_broken_reshapes(structure.nodes, table),
    )


def count_parameters(structure: GraphStructure, table: ShapeTable) -> ParameterCount:
    """Counts weights and running statistics, each tensor once however often it is used."""
    roles = structure.roles
    shapes = {name: table[name] for name in roles.parameter_candidates if name in table}
    usable = {name: shape for name, shape in shapes.items() if is_parameter_type(shape.element_type)}
    trained = [shape for name, shape in usable.items() if name not in roles.buffers]
    buffers = [shape for name, shape in usable.items() if name in roles.buffers]
    return ParameterCount(
        parameters=sum(shape.elements for shape in trained),
        parameter_bytes=sum(shape.size_bytes for shape in trained),
        buffers=sum(shape.elements for shape in buffers),
        buffer_bytes=sum(shape.size_bytes for shape in buffers),
    )


def longest_path(structure: GraphStructure, families: Sequence[OperatorFamily]) -> int:
    """Largest number of multiplying operators that must run one after the other."""
    family_of = dict(zip(structure.roles.device_nodes, families, strict=True))
    depths: dict[str, int] = {}
    for index, node in enumerate(structure.nodes):
        depth = max((depths.get(name, 0) for name in node.inputs), default=0)
        depth += family_of.get(index) in MULTIPLYING_FAMILIES
        depths.update(dict.fromkeys(node.outputs, depth))
    return max(depths.values(), default=0)


def lacks_multiplying_shape(measurement: Measurement) -> bool:
    """Whether an operator with multiply-accumulates could not be counted."""
    return any(measurement.families[position] in MULTIPLYING_FAMILIES for position in measurement.unshaped)


def _repeated(cost: OperatorCost, node: GraphNode, table: ShapeTable) -> OperatorCost:
    times = _repetitions(node, table)
    return cost if times == 1 else cost.times(times)


def _repetitions(node: GraphNode, table: ShapeTable) -> int:
    times = 1
    for repetition in node.repetitions:
        shape = table.get(repetition.tensor)
        if shape is not None and -len(shape.dims) <= repetition.axis < len(shape.dims):
            times *= max(shape.dims[repetition.axis], 1)
    return times


def _waiting_steps(node: GraphNode, table: ShapeTable) -> int:
    """Executions of a node that wait for the one before: steps of a recurrent layer, repetitions of a body."""
    times = _repetitions(node, table)
    if FAMILY_OF.get(node.op_type) is not OperatorFamily.RECURRENT:
        return times - 1
    directions = 2 if node.attributes.get("direction") == b"bidirectional" else 1
    return times * directions * sequence_length(node, table.get(node.input(0)))


def _total_bytes(names: Iterable[str], table: ShapeTable) -> int:
    return sum(table[name].size_bytes for name in names if name in table)


def _count_broken_reshapes(nodes: Iterable[GraphNode], table: ShapeTable) -> int:
    broken = 0
    for node in nodes:
        if node.op_type == "Reshape" and node.inputs and node.outputs:
            before, after = table.get(node.input(0)), table.get(node.outputs[0])
            broken += before is not None and after is not None and before.elements != after.elements
    return broken
