"""What the operators of a graph do to memory in a training step, for `allocator_replay`.

Operators that PyTorch computes in one piece write what leaves the piece only. Sums and concatenations
pass their gradient on as it is. Depthwise and grouped convolutions run kernels that turn nothing around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from predictor_service.features.graphs.allocator_replay import Operator, replay_step
from predictor_service.features.graphs.fused_operators import Kept
from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.saved_activations import row_bytes, saved_tensors, unnamed_bytes_of
from predictor_service.features.graphs.shape_inference import ShapeTable
from predictor_service.features.graphs.storage_layouts import find_storages
from predictor_service.features.graphs.tensor_roles import TensorRoles

_PASSES_GRADIENT = frozenset({"Add", "Sum", "Concat"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


def reserved_bytes(nodes: Sequence[GraphNode], roles: TensorRoles, fused: Mapping[int, Kept], table: ShapeTable) -> int:
    """What the allocator reserves for the tensors of a training step; parameters and input not included.

    Args:
        nodes: All nodes of the graph, in order.
        roles: Their roles.
        fused: `find_fused` of them.
        table: Shapes at one batch; tensors without a shape take nothing.
    """
    storages = find_storages(nodes, roles, fused, table)
    operators = list(_operators(nodes, roles, fused, table, storages))
    return replay_step(operators, roles.trainable)


def _operators(
    nodes: Sequence[GraphNode],
    roles: TensorRoles,
    fused: Mapping[int, Kept],
    table: ShapeTable,
    storages: Mapping[str, str],
) -> Iterator[Operator]:
    inner = _inner_outputs(nodes, roles, fused, storages)
    written: set[str] = set()
    for index in roles.device_nodes:
        node = nodes[index]
        output = node.outputs[0]
        if output in storages:  # a view; its readers read what it looks at
            continue
        kept = fused[index] if index in fused else Kept(tuple(saved_tensors(node, roles.trainable)))
        inputs = {storages.get(name, name): None for name in node.inputs}
        keeps = {storages.get(name, name): None for name in kept.names}
        yield Operator(
            output=output,
            output_bytes=0 if output in inner else _size(output, table),
            inputs=[name for name in inputs if name in written],
            kept=[name for name in keeps if name in written or name == output],
            unnamed_bytes=unnamed_bytes_of(node, roles.trainable, table) + row_bytes(kept, table),
            workspace_bytes=_workspace_bytes(node, table),
            passes_gradient=node.op_type in _PASSES_GRADIENT,
        )
        written.add(output)


def _inner_outputs(
    nodes: Sequence[GraphNode], roles: TensorRoles, fused: Mapping[int, Kept], storages: Mapping[str, str]
) -> Set[str]:
    """Outputs that nothing outside of a piece reads and no piece keeps."""
    if not fused:
        return frozenset()
    read = {
        storages.get(name, name) for index in roles.device_nodes if index not in fused for name in nodes[index].inputs
    }
    read |= {storages.get(name, name) for kept in fused.values() for name in kept.names}
    return {nodes[index].outputs[0] for index in fused} - read


def _workspace_bytes(node: GraphNode, table: ShapeTable) -> int:
    if node.op_type not in _CONVOLUTIONS or node.number("group", 1) > 1:
        return 0
    return _size(node.input(0), table) + _size(node.outputs[0], table)


def _size(name: str, table: ShapeTable) -> int:
    shape = table.get(name)
    return 0 if shape is None else shape.size_bytes
