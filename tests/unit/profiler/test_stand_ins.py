"""Operators that ONNX has not are read as others of the same shapes, so that their networks are predicted at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph

_BATCH, _SIZE = 4, 6
_MULTIPLIES_A_SAMPLE = _SIZE**3


class Applied(nn.Module):
    """Applies a function to a square matrix of each sample, and a layer to what that answers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(_SIZE))

    def forward(self, batch: Tensor) -> Tensor:
        return self.function(batch * self.weight) * 2


def described(function: Callable[[Tensor], Tensor], folder: Path) -> GraphDescription:
    """The graph of it as the conversion writes it, with an open batch."""
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    exported = torch.export.export(Applied(function), (torch.rand(_BATCH, _SIZE, _SIZE),), dynamic_shapes=shapes)
    torch.export.save(exported, folder / "export.pt2")
    return describe_graph(convert(folder / "export.pt2"))


@pytest.mark.parametrize(
    "function",
    [
        torch.lgamma,
        torch.special.i0e,
        lambda values: torch.polygamma(1, values),
        lambda values: torch.hypot(values, values),
        lambda values: torch.normal(values, 0.5),
        lambda values: values + torch.normal(0.0, 0.5, (_SIZE, _SIZE)),
        lambda values: torch.cummax(values, -1)[0],
        lambda values: values.cumprod(dim=-1),
        lambda values: values.median(),
        lambda values: values.median(-1)[0],
        lambda values: values.kthvalue(2, -1, keepdim=True)[1],
        lambda values: values[:, torch.randperm(_SIZE)],
    ],
)
def test_functions_of_numbers_are_read_with_the_shapes_that_they_have(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    assert described(function, tmp_path).unshaped_nodes == 0


@pytest.mark.parametrize(
    ("function", "products"),
    [
        (lambda values: torch.cdist(values, values), 1),
        (lambda values: torch.cdist(values, values[:, : _SIZE // 2]), 0.5),
        (lambda values: torch.linalg.solve(values, values), 1),
        (lambda values: torch.linalg.solve_triangular(values, values, upper=False), 1),
        (torch.linalg.cholesky, 1),
        (torch.linalg.inv, 1),
        (torch.matrix_exp, 1),
        (torch.logdet, 1),
        (lambda values: torch.linalg.slogdet(values)[1], 1),
        (lambda values: sum(torch.linalg.slogdet(values)), 1),
        (lambda values: torch.linalg.householder_product(values, values[..., 0]), 2),
    ],
)
def test_linear_algebra_is_read_as_products_of_matrices(
    function: Callable[[Tensor], Tensor], products: float, tmp_path: Path
) -> None:
    graph = described(function, tmp_path)
    assert graph.unshaped_nodes == 0
    assert graph.at_batch(3).forward_macs == 3 * products * _MULTIPLIES_A_SAMPLE


@pytest.mark.parametrize(
    "function",
    [
        lambda weight: torch.linalg.svd(weight, full_matrices=False)[2],
        lambda weight: torch.linalg.svdvals(weight).sum() * weight,
        lambda weight: torch.linalg.qr(weight)[0],
        lambda weight: torch.linalg.eigh(weight @ weight.T)[1],
    ],
)
def test_parts_of_a_weight_are_read_with_their_shapes(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    def multiplied(batch: Tensor) -> Tensor:
        return batch @ function(batch.new_ones(_SIZE, _SIZE))

    graph = described(multiplied, tmp_path)
    assert graph.unshaped_nodes == 0
    assert graph.at_batch(3).forward_macs >= 3 * _MULTIPLIES_A_SAMPLE
