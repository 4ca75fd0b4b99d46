"""What one operator costs: multiply-accumulates, floating-point operations, bytes moved.

One multiply-accumulate counts as two operations. Element-wise operators count one operation per element (or the few
that their formula has), which only matters for the rooflines: their time is that of their bytes.
Traffic is what must cross the memory bus when nothing stays in a cache: every input once, every output once; a lookup
reads the rows that it returns, and a recurrent layer reads the weights of its state in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.operator_families import FAMILY_OF, MULTIPLYING_FAMILIES, OperatorFamily
from predictor_service.features.graphs.shape_inference import ShapeTable, TensorShape


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """Cost of one execution of one operator, forward only.

    Attributes:
        macs: Multiply-accumulates.
        flops: Operations, two per multiply-accumulate.
        traffic_bytes: Read and written.
        constant_bytes: The part of the traffic that reads constants, whatever the batch.
        output_bytes: Written.
    """

    macs: int
    flops: int
    traffic_bytes: int
    constant_bytes: int
    output_bytes: int

    def times(self, count: int) -> OperatorCost:
        """The cost of several executions."""
        return OperatorCost(
            macs=self.macs * count,
            flops=self.flops * count,
            traffic_bytes=self.traffic_bytes * count,
            constant_bytes=self.constant_bytes * count,
            output_bytes=self.output_bytes,
        )


Shapes = Sequence[TensorShape | None]
_Counter = Callable[[GraphNode, Shapes, Shapes], int]


class _UnshapedError(Exception):
    """A shape that the formula needs is unknown."""


def measure_operator(
    node: GraphNode, family: OperatorFamily, constants: Set[str], table: ShapeTable
) -> OperatorCost | None:
    """Counts one operator.

    Args:
        node: The operator.
        family: What `classify` returned for it.
        constants: Names of tensors that depend on no data.
        table: Shapes of its tensors.

    Returns:
        The cost, or None when a shape is missing.
    """
    inputs = [table.get(name) for name in node.inputs]
    outputs = [table.get(name) for name in node.outputs]
    if not outputs or outputs[0] is None:
        return None
    try:
        macs = _count_macs(node, family, inputs, outputs)
    except (_UnshapedError, IndexError):
        return None
    flops = 2 * macs if family in MULTIPLYING_FAMILIES else _count_flops(node, family, inputs, outputs)
    output_bytes = sum(shape.size_bytes for shape in outputs if shape is not None)
    read_bytes = _bytes_read(node, inputs, outputs)
    return OperatorCost(
        macs=macs,
        flops=flops,
        traffic_bytes=sum(read_bytes) + output_bytes,
        constant_bytes=sum(size for name, size in zip(node.inputs, read_bytes, strict=True) if name in constants),
        output_bytes=output_bytes,
    )


def classify(node: GraphNode, constants: Set[str], table: ShapeTable) -> OperatorFamily:
    """Family of a node; lookups in a constant table are embeddings, groups of one channel are depthwise.

    Args:
        node: The operator.
        constants: Names of tensors that depend on no data.
        table: Shapes of its tensors.
    """
    family = FAMILY_OF.get(node.op_type, OperatorFamily.OTHER)
    if family is OperatorFamily.CONVOLUTION and node.number("group", 1) > 1:
        weight = table.get(node.input(_WEIGHT_INPUT.get(node.op_type, 1)))
        channels = None if weight is None or len(weight.dims) < 2 else weight.dims[1]
        if channels == 1:
            return OperatorFamily.DEPTHWISE_CONVOLUTION
    if node.op_type == "Gather" and node.input(0) in constants:
        looked_up = table.get(node.input(0))
        if looked_up is not None and len(looked_up.dims) == 2:
            return OperatorFamily.EMBEDDING
    return family


def unfolded_bytes(node: GraphNode, table: ShapeTable) -> int:
    """Bytes of a convolution's input when it is computed as one matrix product; 0 of other operators."""
    if FAMILY_OF.get(node.op_type) is not OperatorFamily.CONVOLUTION or node.op_type not in _MACS:
        return 0
    shapes = [[table.get(name) for name in names] for names in (node.inputs, node.outputs)]
    try:
        macs = _MACS[node.op_type](node, *shapes)
        weight, output = _known(shapes[0], _WEIGHT_INPUT.get(node.op_type, 1)), _known(shapes[1], 0)
    except (_UnshapedError, IndexError):
        return 0
    element_bytes = output.size_bytes // max(output.elements, 1)
    return element_bytes * macs // max(weight.dims[0], 1) if weight.dims else 0


def sequence_length(node: GraphNode, sequence: TensorShape | None) -> int:
    """Steps of a recurrent layer from the shape of its input; 0 where it is not known."""
    if sequence is None or len(sequence.dims) < 2:
        return 0
    return sequence.dims[1 if node.number("layout", 0) else 0]


def _count_macs(node: GraphNode, family: OperatorFamily, inputs: Shapes, outputs: Shapes) -> int:
    if family not in MULTIPLYING_FAMILIES:
        return 0
    counter = _MACS.get(node.op_type)
    if counter is None:
        raise _UnshapedError
    return counter(node, inputs, outputs)


def _known(shapes: Shapes, position: int) -> TensorShape:
    shape = shapes[position]
    if shape is None:
        raise _UnshapedError
    return shape


def _convolution(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    """Every output element sums over the kernel and the input channels of its group."""
    weight = _known(inputs, _WEIGHT_INPUT.get(node.op_type, 1))
    return _known(outputs, 0).elements * math.prod(weight.dims[1:])


def _transposed_convolution(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    """Every input element is spread over the kernel and the output channels of its group."""
    return _known(inputs, 0).elements * math.prod(_known(inputs, 1).dims[1:])


def _matrix_multiply(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    left = _known(inputs, 0).dims
    return _known(outputs, 0).elements * (left[-1] if left else 1)


def _gemm(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    left = _known(inputs, 0).dims
    return _known(outputs, 0).elements * (left[0] if node.number("transA", 0) else left[-1])


def _einsum(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    """The product of all label sizes: what a direct loop over two operands does."""
    equation = node.attributes.get("equation", b"")
    terms = (
        (equation.decode(errors="replace") if isinstance(equation, bytes) else "")
        .replace(" ", "")
        .split("->")[0]
        .split(",")
    )
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        for label, size in _einsum_labels(term, _known(inputs, position).dims):
            sizes[label] = max(sizes.get(label, 1), size)
    return math.prod(sizes.values())


def _einsum_labels(term: str, dims: tuple[int, ...]) -> list[tuple[str, int]]:
    before, ellipsis, after = term.partition("...")
    if not ellipsis:
        return list(zip(term, dims, strict=False))
    hidden = len(dims) - len(before) - len(after)
    middle = [f"...{position - hidden}" for position in range(hidden)]
    return list(zip([*before, *middle, *after], dims, strict=False))


def _recurrent(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    """Both weight matrices (all gates, all directions) multiply one vector per sample and step."""
    sequence = _known(inputs, 0).dims
    return sequence[0] * sequence[1] * (_known(inputs, 1).elements + _known(inputs, 2).elements)


def _attention(node: GraphNode, inputs: Shapes, outputs: Shapes) -> int:
    """Scores and weighted sums: queries x keys x (query width + value width), summed over heads."""
    query, key, value = (_known(inputs, position).dims for position in range(3))
    past = inputs[4] if len(inputs) > 4 else None
    keys = key[-2] + (past.dims[-2] if past is not None else 0)
    if len(query) == 4:
        return query[0] * query[1] * query[2] * keys * (query[3] + value[3])
    value_width = value[2] // max(node.number("kv_num_heads", 1), 1) * max(node.number("q_num_heads", 1), 1)
    return query[0] * query[1] * keys * (query[2] + value_width)


_WEIGHT_INPUT = {"QLinearConv": 3}
_MACS: Mapping[str, _Counter] = {
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "QLinearConv": _convolution,
    "DeformConv": _convolution,
    "FusedConv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matrix_multiply,
    "MatMulInteger": _matrix_multiply,
    "QLinearMatMul": _matrix_multiply,
    "FusedMatMul": _matrix_multiply,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
}

_FLOPS_PER_ELEMENT = {
    OperatorFamily.NORMALIZATION: 5,
    OperatorFamily.MOVEMENT: 0,
    OperatorFamily.EMBEDDING: 0,
}
_FLOPS_OF_FUNCTION = {"Softmax": 5, "LogSoftmax": 5, "Gelu": 8, "Sigmoid": 4, "Tanh": 5, "HardSwish": 4, "Erf": 8}


def _count_flops(node: GraphNode, family: OperatorFamily, inputs: Shapes, outputs: Shapes) -> int:
    elements = _known(outputs, 0).elements
    if family is OperatorFamily.POOLING:
        kernel = node.numbers("kernel_shape")
        if kernel:
            return elements * math.prod(kernel)
    if family is OperatorFamily.POOLING or node.op_type.startswith("Reduce"):
        source = inputs[0] if inputs else None
        return elements if source is None else source.elements
    return elements * _FLOPS_OF_FUNCTION.get(node.op_type, _FLOPS_PER_ELEMENT.get(family, 1))


# Operators that read as much as they write, however large the tensor that they pick from.
_PICKING = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Compress"})


def _bytes_read(node: GraphNode, inputs: Shapes, outputs: Shapes) -> list[int]:
    """Bytes read of each input."""
    sizes_bytes = [0 if shape is None else shape.size_bytes for shape in inputs]
    if node.op_type in _PICKING:
        output = outputs[0]
        sizes_bytes[0] = 0 if output is None else output.size_bytes
    if FAMILY_OF.get(node.op_type) is OperatorFamily.RECURRENT and len(sizes_bytes) > 2:
        sizes_bytes[2] *= max(sequence_length(node, inputs[0]), 1)
    return sizes_bytes
