"""Works out small whole-number tensors that do not depend on the input, because shape inference does not.

Exporters compute axes and target shapes by Range, Reshape and arithmetic on constants (the group normalization of
diffusion networks does); what shape inference cannot follow there, it cannot follow behind it either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

IntArray = npt.NDArray[np.int64]

ELEMENTS_MAX: Final = 64
"""Shapes and lists of axes are shorter; anything longer is left alone."""

_NUMBER_MAX: Final = 1 << 24
"""Up to here floats of 32 bits are exact."""
_WHOLE: Final = frozenset({TensorProto.INT64, TensorProto.INT32})


def fold_small_constants(graph: GraphProto) -> dict[str, IntArray]:
    """Replace nodes whose result is a small known whole-number tensor by constants, in place.

    Args:
        graph: Nodes in order of execution; subgraphs are left alone.

    Returns:
        Every small whole-number tensor that is known, by name.
    """
    known: dict[str, IntArray] = {}
    numbers: dict[str, IntArray] = {}
    sizes = {tensor.name: np.array(tensor.dims, dtype=np.int64) for tensor in graph.initializer}
    for tensor in graph.initializer:
        _remember(tensor.name, tensor, known)
    for node in graph.node:
        if not node.output:
            continue
        if node.op_type == "Constant":
            _remember_literal(node, known)
            _remember_number(node, numbers)
            continue
        result = _size(node, sizes) if node.op_type == "Shape" else _compute(node, known)
        result = _cast(node, known, numbers) if result is None else result
        if result is not None:
            known[node.output[0]] = result
            _become_constant(node, result)
    return known


def read_whole_numbers(tensor: TensorProto) -> IntArray | None:
    """The values of a small whole-number tensor; None for any other one, and where they are not in it or damaged."""
    count = int(np.prod(tensor.dims, dtype=np.float64)) if all(size >= 0 for size in tensor.dims) else ELEMENTS_MAX + 1
    if tensor.data_type not in _WHOLE or count > ELEMENTS_MAX or tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor).astype(np.int64)
    except (ValueError, TypeError):
        return None


def _remember(name: str, tensor: TensorProto, known: dict[str, IntArray]) -> None:
    values = read_whole_numbers(tensor)
    if values is not None:
        known[name] = values


def _remember_literal(node: NodeProto, known: dict[str, IntArray]) -> None:
    for attribute in node.attribute:
        if attribute.name == "value":
            _remember(node.output[0], attribute.t, known)
        elif attribute.name == "value_int":
            known[node.output[0]] = np.array(attribute.i, dtype=np.int64)
        elif attribute.name == "value_ints" and len(attribute.ints) <= ELEMENTS_MAX:
            known[node.output[0]] = np.array(attribute.ints, dtype=np.int64)


def _remember_number(node: NodeProto, numbers: dict[str, IntArray]) -> None:
    """Keeps a whole number that is written as a float: exporters start a Range at 0.0 and cast it to its end's type."""
    for attribute in node.attribute:
        tensor = attribute.t if attribute.name == "value" else None
        if tensor is not None and tensor.data_type == TensorProto.FLOAT and not tensor.dims and tensor.raw_data:
            number = float(numpy_helper.to_array(tensor))
            if number.is_integer() and abs(number) < _NUMBER_MAX:
                numbers[node.output[0]] = np.array(int(number), dtype=np.int64)


def _cast(node: NodeProto, known: Mapping[str, IntArray], numbers: Mapping[str, IntArray]) -> IntArray | None:
    """What a small tensor is as whole numbers, where a node makes it such."""
    if node.op_type == "CastLike" and len(node.input) == 2:
        is_whole = node.input[1] in known
    else:
        is_whole = node.op_type == "Cast" and any(
            item.name == "to" and item.i == TensorProto.INT64 for item in node.attribute
        )
    return known.get(node.input[0], numbers.get(node.input[0])) if is_whole else None


def _size(node: NodeProto, sizes: Mapping[str, IntArray]) -> IntArray | None:
    """The shape of an initializer, or the part of it that is asked for."""
    size = sizes.get(node.input[0]) if len(node.input) == 1 and len(node.output) == 1 else None
    if size is None:
        return None
    numbers = {attribute.name: attribute.i for attribute in node.attribute}
    return size[numbers.get("start", 0) : numbers.get("end", len(size))]


def _compute(node: NodeProto, known: Mapping[str, IntArray]) -> IntArray | None:
    compute = _OPERATORS.get(node.op_type)
    if compute is None or len(node.output) != 1 or not all(name in known for name in node.input):
        return None
    try:
        result = compute([known[name] for name in node.input], node)
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
        # A graph that contradicts itself: later checks report where.
        return None
    return result if result is not None and result.size <= ELEMENTS_MAX else None


def _become_constant(node: NodeProto, value: IntArray) -> None:
    constant = helper.make_node("Constant", [], list(node.output), name=node.name, value=numpy_helper.from_array(value))
    node.CopyFrom(constant)


def _range(given: Sequence[IntArray], node: NodeProto) -> IntArray | None:
    start, limit, step = (int(value) for value in given)
    return np.arange(start, limit, step) if len(range(start, limit, step)) <= ELEMENTS_MAX else None


def _expand(given: Sequence[IntArray]) -> IntArray | None:
    sizes = tuple(int(size) for size in given[1].ravel())
    if len(sizes) > given[0].ndim + 8 or any(size > ELEMENTS_MAX for size in sizes):
        return None
    return given[0] * np.ones(sizes, dtype=np.int64) if np.prod(sizes, dtype=np.float64) <= ELEMENTS_MAX else None


def _reshape(given: Sequence[IntArray], node: NodeProto) -> IntArray:
    sizes = [given[0].shape[index] if size == 0 else int(size) for index, size in enumerate(given[1].ravel())]
    return given[0].reshape(sizes)


def _concatenate(given: Sequence[IntArray], node: NodeProto) -> IntArray:
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
    return np.concatenate(list(given), axis=axis)


def _unsqueeze(given: Sequence[IntArray], node: NodeProto) -> IntArray:
    return np.expand_dims(given[0], tuple(int(axis) for axis in given[1].ravel()))


def _squeeze(given: Sequence[IntArray], node: NodeProto) -> IntArray:
    axes = tuple(int(axis) for axis in given[1].ravel()) if len(given) > 1 else None
    return given[0].squeeze(axes)


_OPERATORS: Final[Mapping[str, Callable[[Sequence[IntArray], NodeProto], IntArray | None]]] = {
    "Expand": lambda given, node: _expand(given),
    "Range": _range,
    "Reshape": _reshape,
    "Concat": _concatenate,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Add": lambda given, node: given[0] + given[1],
    "Sub": lambda given, node: given[0] - given[1],
    "Mul": lambda given, node: given[0] * given[1],
}
