"""What each tensor is: data, constant, host number, parameter, buffer, view of another one.

Roles follow from the structure alone and are worked out once per graph, whatever the batch.

- constant: depends on no graph input with data. Computed once, so it costs nothing per step.
- host: integers derived from shapes; they never reach the device.
- device node: everything else. Only these have a cost.
- parameter: a constant floating-point tensor at the root of a constant chain that feeds a device node. The root, not
  the last link: an exporter may slice and concatenate a weight before an operator takes it.
- buffer: running statistics of BatchNormalization, and what its name says is one: weights that are frozen, too;
  stored, not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from onnx import TensorProto

from cotenant.graph_parameters import BUFFER_PREFIX
from predictor_service.features.graphs.graph_nodes import GraphNode

WEIGHT_SLOTS: Mapping[str, frozenset[int]] = {
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "ConvInteger": frozenset({1}),
    "QLinearConv": frozenset({3, 8}),
    "Gemm": frozenset({1, 2}),
    "MatMul": frozenset({1}),
    "MatMulInteger": frozenset({1}),
    "QLinearMatMul": frozenset({3}),
    "BatchNormalization": frozenset({1, 2, 3, 4}),
    "LayerNormalization": frozenset({1, 2}),
    "InstanceNormalization": frozenset({1, 2}),
    "GroupNormalization": frozenset({1, 2}),
    "RMSNormalization": frozenset({1}),
    "PRelu": frozenset({1}),
    "Gather": frozenset({0}),
    "LSTM": frozenset({1, 2, 3}),
    "GRU": frozenset({1, 2, 3}),
    "RNN": frozenset({1, 2, 3}),
}
"""Inputs of an operator that are weights when they are constant."""

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that neither compute nor copy."""

_ALIASES = VIEWS | {"Transpose", "Slice", "Split", "Expand"}
_RUNNING_STATISTICS = frozenset({3, 4})
_SHAPE_READERS = frozenset({"Shape", "Size"})
# With host integers as input these make tensors on the device.
_WRITERS = frozenset({"ScatterND", "ScatterElements"})
_WEIGHT_MAKERS = frozenset({"ConstantOfShape", "RandomNormal", "RandomUniform"})
_FILLERS = frozenset({"Expand", "Range", "EyeLike", "Tile", "OneHot"})
_MATERIALIZERS = frozenset(
    {"ConstantOfShape", "Expand", "Range", "EyeLike", "RandomNormal", "RandomUniform", "Tile", "OneHot"}
)
_PARAMETER_TYPES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT8,
        TensorProto.UINT8,
        TensorProto.INT4,
        TensorProto.UINT4,
        *range(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2FNUZ + 1),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRoles:
    """The roles of all tensors of one graph.

    Attributes:
        device_nodes: Indices into the node list of what runs on the device at every step, views left out.
        constants: Tensors that depend on no data.
        parameter_candidates: Roots of constant chains that feed device nodes; the type decides at measuring.
        buffers: Those among them that are stored and not trained.
        view_roots: Tensor to the tensor whose storage it shares; absent = its own.
        trainable: Tensors that depend on a parameter: a gradient flows through them.
        frozen: Constants that are made of buffers.
    """

    device_nodes: tuple[int, ...]
    constants: Set[str]
    parameter_candidates: tuple[str, ...]
    buffers: Set[str]
    view_roots: Mapping[str, str]
    trainable: Set[str]
    frozen: Set[str]


def is_parameter_type(element_type: int) -> bool:
    """Whether tensors of this ONNX data type can be weights."""
    return element_type in _PARAMETER_TYPES


def assign_roles(nodes: Sequence[GraphNode], stored: Mapping[str, bool]) -> TensorRoles:
    """Works out the roles.

    Args:
        nodes: In order of execution.
        stored: Initializers and graph inputs that are weights; true where type and size are those of a weight. A
            single number is a setting of its operator unless it sits where weights do.
    """
    constants, host = set(stored), set[str]()
    roots: dict[str, frozenset[str]] = {name: frozenset({name}) for name in constants}
    device_nodes: list[int] = []
    view_roots: dict[str, str] = {}
    for index, node in enumerate(nodes):
        given = _value_inputs(node)
        if all(name in constants for name in given):
            constants.update(node.outputs)
            _trace_roots(node, roots)
        elif node.op_type in _SHAPE_READERS:
            host.update(node.outputs)
        elif node.op_type not in _MATERIALIZERS and all(name in constants or name in host for name in given):
            if _comes_from_weight(given, roots, stored):
                # An exporter may cut a weight at places that it computes from shapes; the piece is still the weight.
                constants.update(node.outputs)
                _trace_roots(node, roots)
            else:
                host.update(node.outputs)
        elif node.op_type in VIEWS or _is_idle_dropout(node):
            _alias(node, view_roots)
        else:
            if node.op_type in _ALIASES:
                _alias(node, view_roots)
            device_nodes.append(index)
    feeding = _feeding_roots(nodes, device_nodes, roots, stored)
    buffers = _running_statistics(nodes, device_nodes, roots) | {
        name
        for name in stored
        if name.startswith(BUFFER_PREFIX)  # also what the job holds and no operator takes
    }
    buffers |= _written_into(nodes, device_nodes, roots)
    trainable = _trainable_tensors(nodes, constants, host, set(feeding) - buffers, roots)
    return TensorRoles(
        device_nodes=tuple(device_nodes),
        constants=constants,
        parameter_candidates=tuple(dict.fromkeys((*feeding, *buffers))),
        buffers=buffers,
        view_roots=view_roots,
        trainable=trainable,
        frozen={name for name in constants if roots.get(name, frozenset()) & buffers} - trainable,
    )


def _value_inputs(node: GraphNode) -> list[str]:
    """The tensors that the result depends on; of the second input of CastLike only the type counts."""
    inputs = node.inputs[:1] if node.op_type == "CastLike" else node.inputs
    return [name for name in inputs if name]


def _comes_from_weight(names: Iterable[str], roots: Mapping[str, frozenset[str]], stored: Mapping[str, bool]) -> bool:
    return any(stored.get(root, False) for name in names for root in roots.get(name, frozenset()))


def _is_idle_dropout(node: GraphNode) -> bool:
    """Dropout without a training flag passes its input on."""
    return node.op_type == "Dropout" and (len(node.inputs) < 3 or not node.inputs[2])


def _alias(node: GraphNode, view_roots: dict[str, str]) -> None:
    source = view_roots.get(node.inputs[0], node.inputs[0])
    for name in node.outputs:
        view_roots[name] = source


def _trace_roots(node: GraphNode, roots: dict[str, frozenset[str]]) -> None:
    origin = frozenset[str]().union(*(roots.get(name, frozenset()) for name in _value_inputs(node)))
    made_here = not node.inputs or node.op_type in _MATERIALIZERS
    for name in node.outputs:
        roots[name] = frozenset({name}) if made_here else origin


def _feeding_roots(
    nodes: Sequence[GraphNode],
    device_nodes: Iterable[int],
    roots: Mapping[str, frozenset[str]],
    stored: Mapping[str, bool],
) -> dict[str, None]:
    """Roots that feed device nodes, in order of first use; literals of Constant nodes count in weight slots only.

    What is filled with one value in a weight slot is no weight: an exporter writes a bias of zeros for a convolution
    that has none.
    """
    made = {name for node in nodes if node.op_type in _WEIGHT_MAKERS for name in node.outputs}
    filled = {name for node in nodes if node.op_type in _FILLERS for name in node.outputs}
    feeding: dict[str, None] = {}
    for index in device_nodes:
        node = nodes[index]
        for slot, name in enumerate(node.inputs):
            in_weight_slot = slot in WEIGHT_SLOTS.get(node.op_type, frozenset())
            for root in sorted(roots.get(name, frozenset())):
                if (in_weight_slot and root not in filled) or root in made or stored.get(root, False):
                    feeding[root] = None
    return feeding


def _running_statistics(
    nodes: Sequence[GraphNode], device_nodes: Iterable[int], roots: Mapping[str, frozenset[str]]
) -> Set[str]:
    return {
        root
        for index in device_nodes
        if nodes[index].op_type == "BatchNormalization"
        for slot, name in enumerate(nodes[index].inputs)
        if slot in _RUNNING_STATISTICS
        for root in roots.get(name, frozenset())
    }


def _written_into(
    nodes: Sequence[GraphNode], device_nodes: Iterable[int], roots: Mapping[str, frozenset[str]]
) -> Set[str]:
    """Zeros that a network fills in itself, as detectors put images of several sizes into one batch."""
    filled = {name for node in nodes if node.op_type == "ConstantOfShape" for name in node.outputs}
    written = (nodes[index].inputs[0] for index in device_nodes if nodes[index].op_type in _WRITERS)
    return {root for name in written for root in roots.get(name, frozenset()) & filled}


def _trainable_tensors(
    nodes: Sequence[GraphNode],
    constants: Set[str],
    host: Set[str],
    parameters: Set[str],
    roots: Mapping[str, frozenset[str]],
) -> Set[str]:
    trainable = {name for name in constants if roots.get(name, frozenset()) & parameters}
    for node in nodes:
        if any(name in trainable for name in _value_inputs(node)):
            trainable.update(name for name in node.outputs if name not in host)
    return trainable
