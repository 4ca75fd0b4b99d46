"""Which tensors are 16 bits wide under automatic mixed precision, and which are kept in another width than they have.

Products and convolutions take and give 16 bits; softmax, normalization over features, logarithms, powers and resizing
take and give 32; everything else takes what it is given and gives the widest of that. An operator that keeps a tensor
in another width than it has keeps a copy of its own. Copies of weights that are trained are made once a step and have
a figure of their own; of a weight that is frozen each operator keeps its copy, where a gradient flows through it.

Source: ATen/autocast_mode.h and ATen/autocast_mode.cpp of PyTorch 2.13, AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32
and `cached_cast`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onnx import TensorProto

from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.shape_inference import ShapeTable, TensorShape
from predictor_service.features.graphs.tensor_roles import TensorRoles

_HALVING_OPERATORS: Final = """
    Conv ConvTranspose DeformConv FusedConv MatMul Gemm Einsum FusedMatMul LSTM GRU RNN Attention PRelu
"""
_WIDENING_OPERATORS: Final = """
    Softmax LogSoftmax LayerNormalization GroupNormalization RMSNormalization Exp Log Pow
    Reciprocal Softplus Sinh Cosh Tan Acos Asin CumSum ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceSumSquare
    ReduceLogSumExp Resize Upsample
"""
_HALVING: Final = frozenset(_HALVING_OPERATORS.split())
_WIDENING: Final = frozenset(_WIDENING_OPERATORS.split())
_COMBINING: Final = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Concat", "Where", "Mod"})
"""Whose output is as wide as the widest of what it is given; that of others is as wide as the first."""
_FLOATS: Final = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_HALF_BYTES: Final = 2


class AutocastWidths:
    """Follows widths through a graph, and collects what is kept.

    Args:
        nodes: All nodes of the graph, in order.
        roles: Their roles.
        table: Shapes at one batch.
        storages: `find_storages` of all this.
    """

    def __init__(
        self, nodes: Sequence[GraphNode], roles: TensorRoles, table: ShapeTable, storages: Mapping[str, str]
    ) -> None:
        self._roles = roles
        self._table = table
        self._storages = storages
        self._half: set[str] = set()
        self._products: set[str] = set()
        self._kept: set[tuple[str, bool, str]] = set()
        for node in nodes:
            if self._gives_half(node):
                self._half.update(node.outputs)
            if node.op_type in {"MatMul", "FusedMatMul"}:
                self._products.update(node.outputs)

    def keep(self, node: GraphNode, name: str) -> None:
        """Takes note that a node keeps a tensor, one of its own or one that it is given."""
        is_half = keeps_half = name in self._half
        if name not in node.outputs:
            keeps_half = (is_half or node.op_type in _HALVING) and not self._widens(node)
        if keeps_half == is_half:
            self._kept.add((self._storages.get(name, name), keeps_half, ""))
        else:  # of a view no more is copied than it shows, and each view for itself
            self._kept.add((name, keeps_half, node.outputs[0]))

    def kept_bytes(self, produced: Iterable[str]) -> int:
        """Bytes of everything that is kept: each storage once, and each copy.

        Args:
            produced: Tensors that nodes make; of the graph's inputs and frozen weights only copies count, and weights
                do not at all.
        """
        made, weights = set(produced) - self._roles.frozen, self._roles.constants - self._roles.frozen
        return sum(
            _size_bytes(shape, is_half=is_half)
            for name, is_half, owner in self._kept
            if name not in weights and (name in made or owner)
            for shape in [self._table.get(name)]
            if shape is not None
        )

    def _gives_half(self, node: GraphNode) -> bool:
        if node.op_type in _HALVING:
            return True
        if not node.inputs or self._widens(node):
            return False
        if node.op_type not in _COMBINING:
            return node.input(0) in self._half
        given = [name for name in node.inputs if name and not self._is_narrow(node, name)]
        return bool(given) and all(name in self._half for name in given)

    def _widens(self, node: GraphNode) -> bool:
        """Instance normalization stays as wide as it is; of what was reshaped it is how group norms are exported."""
        if node.op_type == "InstanceNormalization":
            return node.input(0) in self._roles.view_roots
        return node.op_type in _WIDENING

    def _is_narrow(self, node: GraphNode, name: str) -> bool:
        """Whether a factor or summand widens nothing: a number, a condition, or the bias of a product."""
        shape = self._table.get(name)
        if shape is None:
            return name not in self._roles.trainable
        if not shape.dims or shape.element_type not in _FLOATS:
            return True
        is_bias = len(shape.dims) == 1 and name in self._roles.constants
        return is_bias and node.op_type == "Add" and any(other in self._products for other in node.inputs)


def _size_bytes(shape: TensorShape, *, is_half: bool) -> int:
    is_float = shape.element_type in _FLOATS
    return min(shape.size_bytes, _HALF_BYTES * shape.elements) if is_half and is_float else shape.size_bytes
