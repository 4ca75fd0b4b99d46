"""What the state of an optimizer is taken for that lies in parts on several processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import _C, distributed, nn

from cotenant.capture.in_script.optimizer_state import is_in_parts, name_optimizer, outermost, state_bytes


@pytest.fixture
def zero() -> Iterator[Any]:
    """The optimizer of torch in parts, with a group of this process; some releases warn of their own loading of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    distributed.init_process_group("gloo", store=_C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield ZeroRedundancyOptimizer
    distributed.destroy_process_group()


def stepped(optimizer: Any, network: nn.Module) -> list[Any]:
    """The optimizers that a capture sees of it after a step, which are two."""
    network(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return [optimizer.optim, optimizer]


@pytest.mark.parametrize(("kind", "name", "copies"), [(torch.optim.Adam, "adam", 2), (torch.optim.SGD, "sgd", 0)])
def test_an_optimizer_in_parts_is_named_by_the_one_inside_and_its_state_counts_once(
    kind: Any, name: str, copies: int, zero: Any
) -> None:
    network = nn.Linear(4, 3)
    seen = stepped(zero(network.parameters(), optimizer_class=kind, lr=0.1), network)
    (outer,) = outermost(seen)
    assert outer is seen[1]
    assert is_in_parts(outer)
    assert name_optimizer(torch, [outer]) == (name, kind.__name__)
    assert state_bytes(torch, [outer]) == copies * 15 * 4


def test_optimizers_of_their_own_are_all_outermost() -> None:
    optimizers = [torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1) for _ in range(2)]
    assert outermost(optimizers) == optimizers
    assert not any(map(is_in_parts, optimizers))
