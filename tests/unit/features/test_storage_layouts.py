"""Which reshapes copy, next to what PyTorch itself does."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.graphs.storage_layouts import view_strides
from tests.support.onnx_graphs import GraphBuilder


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A tensor in some order of dimensions, some of them repeated, and other dimensions for its elements."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    tensor = torch.zeros(sizes).permute(*draw(st.permutations(range(len(sizes)))))
    if draw(st.booleans()):
        tensor = tensor[..., None].expand(*tensor.shape, 2)
    factors = draw(st.permutations([factor for size in tensor.shape for factor in (size, 1)]))
    parts = draw(st.lists(st.integers(0, len(factors)), max_size=3).map(sorted))
    cuts = [0, *parts, len(factors)]
    return tensor, tuple(math.prod(factors[start:end]) for start, end in itertools.pairwise(cuts))


@given(reshapes())
def test_a_reshape_copies_where_pytorch_copies(case: tuple[torch.Tensor, tuple[int, ...]]) -> None:
    tensor, target = case
    try:
        seen = tensor.view(target)
    except RuntimeError:
        assert view_strides(tensor.shape, tensor.stride(), target) is None
    else:
        found = view_strides(tensor.shape, tensor.stride(), target)
        assert found is not None
        assert [one for one, size in zip(found, target, strict=True) if size > 1] == [
            one for one, size in zip(seen.stride(), target, strict=True) if size > 1
        ]


def test_heads_that_are_merged_after_being_turned_are_a_copy() -> None:
    net = GraphBuilder()
    x = net.node("Relu", [net.conv(net.input("x", ["batch", 4, 8, 8]), (4, 4))])
    merged = net.node("Reshape", [net.node("Transpose", [x], perm=[0, 2, 1, 3]), net.integers([0, 8, 32])])
    y = net.node("MatMul", [merged, net.weight([32, 8])])

    assert describe_graph(net.model(y).SerializeToString()).at_batch(1).activation_bytes_saved == 2 * 4 * 8 * 8 * 4


def test_what_is_repeated_is_a_copy_once_it_is_reshaped() -> None:
    net = GraphBuilder()
    x = net.node("Relu", [net.conv(net.input("x", ["batch", 4, 8, 8]), (4, 4))])
    wider = net.node("Expand", [net.node("Unsqueeze", [x, net.integers([2])]), net.integers([1, 1, 2, 1, 1])])
    y = net.node("MatMul", [net.node("Reshape", [wider, net.integers([0, 8, 8, 8])]), net.weight([8, 8])])

    assert describe_graph(net.model(y).SerializeToString()).at_batch(1).activation_bytes_saved == 3 * 4 * 8 * 8 * 4
