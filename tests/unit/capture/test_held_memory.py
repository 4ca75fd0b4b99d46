"""What a script holds besides the networks that learn: copies of them, and networks that only answer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from cotenant.capture.in_script.held_memory import outside_bytes
from cotenant.capture.in_script.optimizer_state import name_optimizer

WEIGHTS = 8 * 16 + 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)


def test_an_average_of_the_weights_is_held_and_the_network_itself_is_not() -> None:
    network = Net()
    assert outside_bytes(torch, [network], []) == 0

    averaged = torch.optim.swa_utils.AveragedModel(network)
    assert outside_bytes(torch, [network], []) == 4 * WEIGHTS
    del averaged


def test_a_network_that_only_answers_is_held_once_though_it_is_a_copy() -> None:
    network, teacher = Net(), nn.Linear(4, 4)
    target = copy.deepcopy(network)

    assert outside_bytes(torch, [network], [teacher, target]) == 4 * (WEIGHTS + 4 * 4 + 4)


def test_averages_in_dictionaries_and_lists_are_held_once_they_are_written_to() -> None:
    network = Net()
    by_name = {name: each.detach().clone() for name, each in network.named_parameters()}
    in_order = [each.detach().clone() for each in network.parameters()]
    assert outside_bytes(torch, [network], []) == 0  # loaded or saved: it may lie anywhere

    for each in (*by_name.values(), *in_order):
        each.mul_(0.9)
    assert outside_bytes(torch, [network], []) == 2 * 4 * WEIGHTS


def test_what_an_export_in_the_same_process_drew_with_holds_nothing() -> None:
    network, lines = Net(), ShapeEnv()
    with FakeTensorMode(shape_env=lines):
        drawn = [torch.empty(16, 8).add_(1), torch.empty(16).add_(1)]
        of_unknown_width = [torch.empty(16, lines.create_unbacked_symint()).add_(1), torch.empty(16).add_(1)]
        wrapped = [torch._to_functional_tensor(each) for each in of_unknown_width]
        drawn_network = Net()
    with torch.device("meta"):
        bare = [torch.empty(16, 8).add_(1), torch.empty(16).add_(1)]

    assert outside_bytes(torch, [network], []) == 0
    del drawn, of_unknown_width, wrapped, drawn_network, bare


class Lazy(dict[str, object]):
    """Loads what it is asked for, as transformers' table of networks does."""

    def get(self, name: str, default: object, /) -> object:  # type: ignore[override]
        raise AssertionError(f"{name} was looked up")


def test_dictionaries_and_networks_of_libraries_are_left_alone() -> None:
    network, half_made = Net(), Net.__new__(Net)
    lazy = Lazy({name: None for name, _ in network.named_parameters()})
    assert outside_bytes(torch, [network], []) == 0
    del lazy, half_made


class Keeps(torch.optim.Optimizer):
    """Keeps so many copies of the parameters, of 32 or 8 bits."""

    def __init__(self, network: nn.Module, *kinds: torch.dtype) -> None:
        super().__init__(network.parameters(), {})
        for each in network.parameters():
            self.state[each] = {f"copy {place}": torch.zeros_like(each, dtype=kind) for place, kind in enumerate(kinds)}


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ((), "sgd"),
        ((torch.uint8, torch.uint8), "sgd"),
        ((torch.float32,), "momentum"),
        ((torch.float32, torch.bfloat16), "momentum"),
        ((torch.float32,) * 2, "adam"),
        ((torch.float32,) * 4, "adam"),
    ],
)
def test_an_optimizer_of_another_name_is_told_by_its_whole_copies_of_the_parameters(
    kinds: tuple[torch.dtype, ...], name: str
) -> None:
    assert name_optimizer(torch, [Keeps(Net(), *kinds)]) == (name, "Keeps")
