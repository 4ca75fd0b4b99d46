"""Calls with one sample are a batch together, unless the network is called with batches as well."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cotenant.capture.in_script.repeated_calls import as_one_batch
from cotenant.capture.in_script.step_window import Call


def call(network: nn.Module, *shape: int) -> Call:
    return Call(torch, network, ((torch.randn(*shape),), {}), group=0, inside_step=0)


def test_single_samples_before_a_backward_pass_are_one_batch() -> None:
    network = nn.Linear(4, 2)
    calls, samples = as_one_batch(torch, [call(network, 4) for _ in range(5)])
    assert (samples, len(calls), tuple(calls[0].args[0].shape)) == (5, 1, (1, 4))


@pytest.mark.parametrize("alone", [(4,), (1, 4)])
def test_what_an_agent_does_between_its_updates_is_no_part_of_the_batch_that_it_learns_from(
    alone: tuple[int, ...],
) -> None:
    network = nn.Linear(4, 2)
    calls = [*(call(network, *alone) for _ in range(4)), call(network, 56, 4)]
    kept, samples = as_one_batch(torch, calls)
    assert (kept, samples) == ([calls[-1]], 0)


def test_batches_stay_as_they_are() -> None:
    network = nn.Linear(4, 2)
    calls = [call(network, 8, 4), call(network, 16, 4)]
    assert as_one_batch(torch, calls) == (calls, 0)
