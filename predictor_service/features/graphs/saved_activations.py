"""Which tensors a training step keeps from the forward pass until their gradient is computed.

The rule follows what automatic differentiation needs, operator by operator: convolutions, pooling, normalization keep
their input, convolutions their weights too; ReLU, softmax, tanh and sigmoid their output; products keep the other
factor where a gradient flows through this one; additions, means, resizing and copies keep nothing. What PyTorch
computes in one piece keeps what the piece needs (`fused_operators`). A view keeps the storage that it looks at
(`storage_layouts`), and a storage is counted once. Graph inputs and parameters are not counted: they are on the device
anyway and have figures of their own.

In mixed precision some tensors are half as wide and some are kept twice, see `autocast_widths`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from predictor_service.features.graphs.autocast_widths import AutocastWidths
from predictor_service.features.graphs.fused_operators import Kept
from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.shape_inference import ShapeTable
from predictor_service.features.graphs.storage_layouts import find_storages
from predictor_service.features.graphs.tensor_roles import TensorRoles

_INPUT_KEEPERS = """
    Conv ConvTranspose DeformConv BatchNormalization LayerNormalization InstanceNormalization GroupNormalization
    RMSNormalization LpNormalization MeanVarianceNormalization MaxPool AveragePool LpPool GlobalMaxPool
    Gelu FastGelu Swish Mish HardSwish HardSigmoid Clip LeakyRelu Elu Selu Celu Softplus Softsign
    PRelu Erf Log Abs Sin Cos Pow ReduceL2 ReduceSumSquare LSTM GRU RNN
"""
_OUTPUT_KEEPERS = """
    Relu Sigmoid Tanh Softmax LogSoftmax Exp Sqrt Reciprocal ReduceL2 ReduceLogSumExp LSTM GRU RNN Attention LRN
"""
_KEEPS_INPUT = frozenset(_INPUT_KEEPERS.split())
_KEEPS_OUTPUT = frozenset(_OUTPUT_KEEPERS.split())
_KEEPS_FACTORS = frozenset({"Mul", "MatMul", "Gemm", "Einsum", "Div", "Pow", "FusedMatMul"})
_KEEPS_ALL_INPUTS = frozenset({"Attention", "LRN"})
_KEEPS_WEIGHT = frozenset({"Conv", "ConvTranspose"})
_KEEPS_CHOICE = {"Where": 0, "Gather": 1, "GatherElements": 1, "GatherND": 1}
# Numbers per step, sample and hidden unit in addition to input and output: gates and cell state.
_RECURRENT_STATES = {"LSTM": 6, "GRU": 5, "RNN": 1}
_KEEPS_POSITIONS = frozenset({"MaxPool", "ReduceMax", "ReduceMin"})
_INDEX_BYTES = 8
# First of the dimensions that have a mean and a deviation together, where the node does not name it.
_NORMALIZED_FROM = {"LayerNormalization": -1, "InstanceNormalization": 2}
_STATISTICS_BYTES = 8
_ROW_BYTES = 4


class SavedBytes(NamedTuple):
    """What the backward pass needs.

    Attributes:
        exported: Bytes in the types of the export.
        mixed: Bytes under automatic mixed precision.
    """

    exported: int
    mixed: int


def saved_activation_bytes(
    nodes: Sequence[GraphNode], roles: TensorRoles, fused: Mapping[int, Kept], table: ShapeTable
) -> SavedBytes:
    """Adds up what the backward pass needs.

    Args:
        nodes: All nodes of the graph, in order.
        roles: Their roles.
        fused: `find_fused` of them.
        table: Shapes at one batch.

    Returns:
        Bytes, each storage once; tensors without a shape count nothing.
    """
    produced = {name for node in nodes for name in node.outputs}
    owners = find_storages(nodes, roles, fused, table)
    widths = AutocastWidths(nodes, roles, table, owners)
    storages: set[str] = set()
    unnamed_bytes, unnamed_mixed_bytes = 0, 0
    for index in roles.device_nodes:
        node = nodes[index]
        if not any(name in roles.trainable for name in node.outputs):
            continue
        kept = fused[index] if index in fused else Kept(tuple(saved_tensors(node, roles.trainable)))
        for name in kept.names:
            storages.add(owners.get(name, name))
            widths.keep(node, name)
        unnamed = unnamed_bytes_of(node, roles.trainable, table) + row_bytes(kept, table)
        unnamed_bytes += unnamed
        unnamed_mixed_bytes += unnamed // 2 if node.op_type in _RECURRENT_STATES else unnamed
    shapes = (table.get(name) for name in storages if name in produced and name not in roles.constants)
    named_bytes = sum(shape.size_bytes for shape in shapes if shape is not None)
    return SavedBytes(unnamed_bytes + named_bytes, unnamed_mixed_bytes + widths.kept_bytes(produced))


def saved_tensors(node: GraphNode, trainable: Set[str]) -> Iterable[str]:
    """Names of the tensors that an operator's backward pass reads, where it is no part of a piece."""
    operator = node.op_type
    if operator in _KEEPS_INPUT:
        yield node.input(0)
    if operator in _KEEPS_WEIGHT:
        yield node.input(1)
    if operator in _KEEPS_OUTPUT:
        yield node.outputs[0]
    if operator in _KEEPS_ALL_INPUTS:
        yield from (name for name in node.inputs[:3] if name)
    if operator in _KEEPS_FACTORS:
        yield from _saved_factors(node.inputs[:2], trainable)
    if operator in _KEEPS_CHOICE:
        yield node.input(_KEEPS_CHOICE[operator])
    if operator == "TopK":
        yield node.outputs[-1]


def _saved_factors(factors: Sequence[str], trainable: Set[str]) -> Iterable[str]:
    """A factor is needed for the gradient of the other ones."""
    for position, name in enumerate(factors):
        if any(other in trainable for place, other in enumerate(factors) if place != position):
            yield name


def unnamed_bytes_of(node: GraphNode, trainable: Set[str], table: ShapeTable) -> int:
    """Positions of the maxima, dropout masks, gates of recurrent layers, mean and deviation of what is normalized."""
    output = table.get(node.outputs[0])
    if output is None:
        return 0
    if node.op_type in _NORMALIZED_FROM:
        axis = node.number("axis", _NORMALIZED_FROM[node.op_type])
        # An instance normalization repeats its scale for each sample.
        repeats = node.op_type == "InstanceNormalization" and node.input(1) in trainable
        return (_STATISTICS_BYTES + _ROW_BYTES * repeats) * math.prod(output.dims[:axis])
    if node.op_type in _KEEPS_POSITIONS:
        return output.elements * _INDEX_BYTES
    if node.op_type == "Dropout":
        return output.elements
    return output.size_bytes * _RECURRENT_STATES.get(node.op_type, 0)


def row_bytes(kept: Kept, table: ShapeTable) -> int:
    """One number for each row of a matrix of scores."""
    scores = table.get(kept.rows_of) if kept.rows_of else None
    if scores is None or not scores.dims:
        return 0
    return _ROW_BYTES * scores.elements // max(scores.dims[-1], 1)
