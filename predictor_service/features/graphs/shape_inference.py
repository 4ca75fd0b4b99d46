"""Shapes of all tensors of a model whose inputs are bound.

The fast path is onnx.shape_inference with data propagation. Where it leaves an operator with multiply-accumulates
without a shape, the symbolic engine of onnx-shape-inference is asked; it is slower, and it would compute large integer
tensors element by element, so only graphs of moderate size get there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from predictor_service.errors import GraphLimitError, MalformedGraphError
from predictor_service.features.graphs.constant_folding import read_whole_numbers
from predictor_service.features.graphs.graph_limits import GraphLimits, subgraphs
from predictor_service.features.graphs.graph_nodes import chosen_branch, subgraph_prefix

if TYPE_CHECKING:
    import onnx_ir

_logger = logging.getLogger(__name__)

_FALLBACK_NODES = 4_000
_FALLBACK_FILL_ELEMENTS = 1 << 16
_FILLING = frozenset({"ConstantOfShape", "Expand", "Tile"})
_BITS: Mapping[int, int] = {
    TensorProto.FLOAT: 32,
    TensorProto.DOUBLE: 64,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.INT64: 64,
    TensorProto.UINT64: 64,
    TensorProto.INT32: 32,
    TensorProto.UINT32: 32,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
}


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor whose every dimension is known.

    Attributes:
        dims: Sizes; empty for a scalar.
        element_type: onnx.TensorProto data type.
    """

    dims: tuple[int, ...]
    element_type: int

    @property
    def elements(self) -> int:
        """Product of the dimensions."""
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor; types of unknown width count as one byte an element."""
        return (self.elements * _BITS.get(self.element_type, 8) + 7) // 8


ShapeTable = Mapping[str, TensorShape]


def infer_shapes(model: ModelProto, limits: GraphLimits) -> ShapeTable:
    """Infers every shape that follows from the bound inputs.

    Args:
        model: All dimensions of its inputs have values.
        limits: Largest accepted tensor.

    Returns:
        Shapes by tensor name, names as in `graph_nodes.flatten`; a tensor that could not be inferred is absent.

    Raises:
        MalformedGraphError: The operators contradict each other.
        GraphLimitError: A tensor is larger than accepted.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise MalformedGraphError(
            f"shapes cannot be inferred: {str(error)[:500]}",
            remedy="check the model with onnx.checker and export it again",
        ) from None
    table: dict[str, TensorShape] = {}
    _collect(inferred.graph, "", table)
    for name, shape in table.items():
        if min(shape.dims, default=0) < 0:
            raise MalformedGraphError(
                f"tensor {name} has the shape {list(shape.dims)}, less than nothing",
                remedy="look at the pads, sizes and scales of the node that makes it",
            )
        if shape.elements > limits.elements:
            raise GraphLimitError(
                f"tensor {name} has the shape {list(shape.dims)}, more than {limits.elements} elements",
                remedy="look at the dimension bindings and the node that makes it",
            )
    return table


def infer_shapes_symbolically(model: ModelProto, table: ShapeTable, limits: GraphLimits) -> ShapeTable:
    """Asks the second engine for what the first one left open.

    Args:
        model: The model given to `infer_shapes`.
        table: What that returned.
        limits: Largest accepted tensor.

    Returns:
        `table` with additional shapes; unchanged for graphs that would take the second engine too long.
    """
    if len(model.graph.node) > _FALLBACK_NODES or _fills_large_tensors(model.graph):
        return table
    # Imported here: few graphs need them, and SymPy beneath them takes a third of a program's start.
    import onnx_ir
    import onnx_shape_inference

    try:
        inferred = onnx_shape_inference.infer_symbolic_shapes(onnx_ir.from_proto(model))
    except Exception as error:  # foreign code on foreign input: its failure only means fewer shapes
        _logger.info("shape_inference_failed", extra={"reason": str(error)})
        return table
    return {**dict(_known_values(inferred.graph.all_nodes(), limits)), **table}


def _known_values(nodes: Iterable[onnx_ir.Node], limits: GraphLimits) -> Iterator[tuple[str, TensorShape]]:
    for node in nodes:
        for value in node.outputs:
            dims = [] if value.shape is None else list(value.shape)
            known = value.shape is not None and all(isinstance(size, int) and size >= 0 for size in dims)
            if value.name and known and value.dtype is not None:
                shape = TensorShape(tuple(int(str(size)) for size in dims), int(value.dtype))
                if shape.elements <= limits.elements:
                    yield value.name, shape


def _fills_large_tensors(graph: GraphProto) -> bool:
    """Whether some ConstantOfShape makes a tensor that the second engine would compute element by element."""
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    sources = [name for node in graph.node if node.op_type in _FILLING for name in node.input]
    return any(_product_of_values(shapes[name]) > _FALLBACK_FILL_ELEMENTS for name in sources if name in shapes)


def _product_of_values(tensor: TensorProto) -> int:
    values = read_whole_numbers(tensor)
    return 0 if values is None else math.prod(values.ravel().tolist())


def _collect(graph: GraphProto, prefix: str, table: dict[str, TensorShape]) -> None:
    for tensor in graph.initializer:
        table[prefix + tensor.name] = TensorShape(tuple(tensor.dims), tensor.data_type)
    for sparse in graph.sparse_initializer:
        table[prefix + sparse.values.name] = TensorShape(tuple(sparse.dims), sparse.values.data_type)
    for values in (graph.input, graph.value_info, graph.output):
        for value in values:
            shape = _declared_shape(value)
            if shape is not None:
                table[prefix + value.name] = shape
    for index, node in enumerate(graph.node):
        bodies = subgraphs(node)
        if bodies:
            branch = chosen_branch(node)
            inner_prefix = subgraph_prefix(prefix, index, branch)
            _collect(bodies[branch], inner_prefix, table)
            _bind_body_inputs(node, bodies[branch], (prefix, inner_prefix), table)


def _bind_body_inputs(
    node: NodeProto, body: GraphProto, prefixes: tuple[str, str], table: dict[str, TensorShape]
) -> None:
    """A body's inputs look like the node's: a Loop adds two scalars in front, a Scan takes one axis away."""
    prefix, inner_prefix = prefixes
    scanned = next((item.i for item in node.attribute if item.name == "num_scan_inputs"), 0)
    first_scanned = len(body.input) - scanned
    offered = list(node.input)
    for position, value in enumerate(body.input):
        shape = table.get(prefix + offered[position]) if position < len(offered) else None
        if shape is not None and node.op_type == "Scan" and position >= first_scanned:
            shape = TensorShape(shape.dims[1:], shape.element_type)
        if shape is not None and (node.op_type == "Scan" or position >= 2):
            table.setdefault(inner_prefix + value.name, shape)


def _declared_shape(value: ValueInfoProto) -> TensorShape | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not tensor.elem_type:
        return None
    dims = tensor.shape.dim
    if not all(size.HasField("dim_value") for size in dims):
        return None
    return TensorShape(tuple(size.dim_value for size in dims), tensor.elem_type)
