"""Turns pieces that an exporter takes out of a sequence of pieces into plain slices, whose shapes can be inferred.

PyTorch's exporter writes `chunk` and `split` as SplitToSequence with SequenceAt; attention projections are cut that
way, and shape inference stops at a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from predictor_service.features.graphs.constant_folding import IntArray

_END_MAX: Final = (1 << 63) - 1


def unroll_split_sequences(graph: GraphProto, constants: Mapping[str, IntArray]) -> int:
    """Replace SequenceAt of a SplitToSequence by Slice, in place.

    Args:
        graph: Its own nodes only; subgraphs are left alone.
        constants: Small whole-number tensors of the graph by name.

    Returns:
        Number of slices.
    """
    splits = {
        node.output[0]: node for node in graph.node if node.op_type == "SplitToSequence" and node.input and node.output
    }
    slices = 0
    for node in graph.node:
        if node.op_type != "SequenceAt" or len(node.input) != 2 or not node.output or node.input[0] not in splits:
            continue
        bounds = _bounds(splits[node.input[0]], constants.get(node.input[1]), constants)
        if bounds is not None and bounds[1] <= _END_MAX:
            _become_slice(graph, node, splits[node.input[0]], bounds)
            slices += 1
    return slices


def _bounds(
    split: NodeProto, position: IntArray | None, constants: Mapping[str, IntArray]
) -> tuple[int, int, int] | None:
    """Start, end and axis of a piece; None where they depend on the input or on how many pieces there are."""
    numbers = {attribute.name: attribute.i for attribute in split.attribute}
    axis = numbers.get("axis", 0)
    if position is None or position.size != 1 or int(position.ravel()[0]) < 0:
        return None
    index = int(position.ravel()[0])
    if len(split.input) < 2 or not split.input[1]:
        return (index, index + 1, axis) if numbers.get("keepdims", 1) else None
    sizes = constants.get(split.input[1])
    if sizes is None or (sizes < 0).any():
        return None
    if sizes.ndim == 0:
        return index * int(sizes), (index + 1) * int(sizes), axis
    ends = np.cumsum(sizes)
    return (int(ends[index] - sizes[index]), int(ends[index]), axis) if index < len(ends) else None


def _become_slice(graph: GraphProto, node: NodeProto, split: NodeProto, bounds: Sequence[int]) -> None:
    names = [f"{node.output[0]}::{part}" for part in ("start", "end", "axis")]
    for name, value in zip(names, bounds, strict=True):
        graph.initializer.append(numpy_helper.from_array(np.array([value], dtype=np.int64), name))
    node.CopyFrom(helper.make_node("Slice", [split.input[0], *names], list(node.output), name=node.name))
