"""Experts are counted with the tokens that a router gives them in the mean; what is chosen otherwise is uncounted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cotenant_profiler.convert_command import convert
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph

_WIDTH, _HIDDEN = 8, 16
Expert = Callable[[Tensor], Tensor]
Route = Callable[[list[Expert], Tensor, Tensor, Tensor], Tensor]


def by_place(experts: list[Expert], x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """As most write it."""
    out = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        tokens, slots = torch.where(chosen == number)
        out = out.index_add(0, tokens, expert(x[tokens]) * weights[tokens, slots].unsqueeze(-1))
    return out


def by_one_hot(experts: list[Expert], x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """As Mixtral does."""
    mask = nn.functional.one_hot(chosen, len(experts)).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        slots, tokens = torch.where(mask[number])
        out.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, slots, None])
    return out


def by_mask(experts: list[Expert], x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """With a mask of tokens for each expert."""
    out = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        mask = (chosen == number).any(-1)
        out[mask] += expert(x[mask])
    return out


class Mixture(nn.Module):
    """A router and its experts."""

    def __init__(self, route: Route, experts: int, taken: int) -> None:
        super().__init__()
        self.route, self.taken = route, taken
        self.gate = nn.Linear(_WIDTH, experts)
        parts = (
            nn.Sequential(nn.Linear(_WIDTH, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _WIDTH)) for _ in range(experts)
        )
        self.experts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, _WIDTH)
        weights, chosen = torch.topk(torch.softmax(self.gate(tokens), -1), self.taken, -1)
        return self.route(list(self.experts), tokens, weights, chosen).reshape(x.shape)


def described(network: nn.Module, tokens: int, folder: Path) -> GraphDescription:
    export_network(torch, network, (torch.randn(3, tokens, _WIDTH),), {}, folder)
    return describe_graph(convert(folder / EXPORT_FILE))


@pytest.mark.parametrize("route", [by_place, by_one_hot, by_mask])
@pytest.mark.parametrize(("experts", "taken", "tokens"), [(4, 2, 5), (3, 1, 7)])
def test_each_expert_computes_its_share_of_the_tokens(
    route: Route, experts: int, taken: int, tokens: int, tmp_path: Path
) -> None:
    graph = described(Mixture(route, experts, taken), tokens, tmp_path)
    for batch in (12, 48):
        routed = batch * tokens * taken * 2 * _WIDTH * _HIDDEN
        assert graph.at_batch(batch).forward_macs == batch * tokens * _WIDTH * experts + routed
    assert graph.unshaped_nodes == 0
    assert [warning.code for warning in graph.warnings] == ["ROUTED_TOKENS"]


def test_what_is_chosen_by_other_values_is_uncounted_and_said() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Greater", ["x", "zero"], ["above"]),
            helper.make_node("Cast", ["above"], ["mask"], to=TensorProto.INT64),
            helper.make_node("NonZero", ["mask"], ["places"]),
            helper.make_node("Transpose", ["places"], ["rows"]),
            helper.make_node("GatherND", ["table", "rows"], ["found"]),
            helper.make_node("MatMul", ["found", "weight"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.zeros((), dtype=np.float32), "zero"),
            numpy_helper.from_array(np.zeros((64, 4, 8), dtype=np.float32), "table"),
            numpy_helper.from_array(np.zeros((8, 8), dtype=np.float32), "weight"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    codes = [warning.code for warning in describe_graph(model.SerializeToString()).warnings]
    assert codes == ["UNSHAPED_NODES", "UNCOUNTED_MACS"]


def test_routers_whose_shares_no_batch_makes_whole_are_described_all_the_same() -> None:
    sizes = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149)
    nodes, given = [], [numpy_helper.from_array(np.array([1]), "k"), numpy_helper.from_array(np.array(0), "zero")]
    for each in sizes:
        given.append(numpy_helper.from_array(np.zeros((4, each), dtype=np.float32), f"gate{each}"))
        nodes += [
            helper.make_node("MatMul", ["x", f"gate{each}"], [f"scores{each}"]),
            helper.make_node("TopK", [f"scores{each}", "k"], [f"best{each}", f"chosen{each}"]),
            helper.make_node("Equal", [f"chosen{each}", "zero"], [f"mask{each}"]),
            helper.make_node("NonZero", [f"mask{each}"], [f"y{each}"]),
        ]
    outputs = [helper.make_tensor_value_info(f"y{each}", TensorProto.INT64, None) for each in sizes]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    described = describe_graph(model.SerializeToString())
    assert described.at_batch(8).forward_macs == 8 * 4 * sum(sizes)
