"""Which storage a tensor lies in: views share one until a reshape has to copy.

Roles say which operators may look at the storage of their input. Whether a reshape does depends on how that lies in
memory: dimensions that were transposed or repeated cannot be merged without a copy. Followed are strides, as PyTorch
follows them; what no view made is contiguous, but for the output of attention in one call, whose heads lie next to
each other for each place, and of a recurrent layer, whose directions do.

Source: `computeStride` of ATen/TensorUtils.cpp of PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from predictor_service.features.graphs.fused_operators import Kept
from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.operator_families import FAMILY_OF, OperatorFamily
from predictor_service.features.graphs.shape_inference import ShapeTable
from predictor_service.features.graphs.tensor_roles import TensorRoles

_SECOND_FIRST = (0, 2, 1, 3)
Strides = tuple[int, ...]


def find_storages(
    nodes: Sequence[GraphNode], roles: TensorRoles, fused: Mapping[int, Kept], table: ShapeTable
) -> Mapping[str, str]:
    """Finds the storage of every tensor that is a view.

    Args:
        nodes: All nodes of the graph, in order.
        roles: Their roles.
        fused: `find_fused` of them.
        table: Shapes at one batch; a view without them is taken for one that copies nothing.

    Returns:
        The tensor that made the storage, by tensor; absent = it is its own.
    """
    turned = [kept.heads_last for kept in fused.values()]
    turned += [node.outputs[0] for node in nodes if FAMILY_OF.get(node.op_type) is OperatorFamily.RECURRENT]
    layouts = {
        name: _permuted_back(table[name].dims)
        for name in turned
        if name in table and len(table[name].dims) == len(_SECOND_FIRST)
    }
    storages: dict[str, str] = {}
    for node in nodes:
        if not node.outputs or node.outputs[0] not in roles.view_roots:
            continue
        source = node.input(0)
        for name in node.outputs:
            known = layouts.get(source) or _contiguous(table[source].dims) if source in table else None
            found = None if known is None or name not in table else _viewed(node, known, source, name, table)
            if found is not None or known is None or name not in table:
                storages[name] = storages.get(source, source)
            if found is not None:
                layouts[name] = found
    return storages


def view_strides(dims: Sequence[int], strides: Strides, target: Sequence[int]) -> Strides | None:
    """Strides of a tensor once it is reshaped; None where it has to be copied.

    Args:
        dims: Of the tensor.
        strides: Of the tensor, elements.
        target: Dimensions wanted, of as many elements.
    """
    if not dims or 0 in dims:
        return _contiguous(target)
    found, place = [0] * len(target), len(target) - 1
    base, merged, viewed = strides[-1], 1, 1
    for dimension in reversed(range(len(dims))):
        merged *= dims[dimension]
        if dimension and (dims[dimension - 1] == 1 or strides[dimension - 1] == merged * base):
            continue
        while place >= 0 and (viewed < merged or target[place] == 1):
            found[place] = viewed * base
            viewed *= target[place]
            place -= 1
        if viewed != merged:
            return None
        if dimension:
            base, merged, viewed = strides[dimension - 1], 1, 1
    return tuple(found) if place < 0 else None


def _viewed(node: GraphNode, known: Strides, source: str, name: str, table: ShapeTable) -> Strides | None:
    """Strides of a view's output; None where it is a copy."""
    dims, target = table[source].dims, table[name].dims
    if node.op_type == "Transpose":
        order = node.numbers("perm") or tuple(reversed(range(len(dims))))
        return tuple(known[place] for place in order)
    if node.op_type == "Expand":
        given, wanted = (1,) * (len(target) - len(dims)) + tuple(dims), (0,) * (len(target) - len(dims)) + known
        return tuple(
            0 if size != larger else stride for size, larger, stride in zip(given, target, wanted, strict=True)
        )
    if node.op_type in {"Slice", "Split", "Identity", "Dropout"}:
        return known
    is_repeated = any(size > 1 and not stride for size, stride in zip(dims, known, strict=True))
    return None if is_repeated and len(dims) != len(target) else view_strides(dims, known, target)


def _contiguous(dims: Iterable[int]) -> Strides:
    sizes = [max(size, 1) for size in dims]
    return tuple(itertools.accumulate(reversed(sizes[1:]), int.__mul__, initial=1))[::-1] if sizes else ()


def _permuted_back(dims: Sequence[int]) -> Strides:
    """Strides of a tensor of four dimensions that lies in memory with the second and third one exchanged."""
    lying = _contiguous([dims[place] for place in _SECOND_FIRST])
    return tuple(lying[_SECOND_FIRST.index(place)] for place in range(len(dims)))
