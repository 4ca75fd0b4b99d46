"""Calls with one sample are a batch together, unless the network is called with batches as well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from cotenant.capture.in_script.repeated_calls import as_one_batch
from cotenant.capture.in_script.step_export import _batch_sizes, _export
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


class AnyLength(nn.Module):
    """Takes rows of any length in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: SimpleNamespace) -> Tensor:
        scaled: Tensor = batch.x * self.scale
        return scaled


def test_numbers_in_an_object_that_may_hold_more_of_them_are_a_batch() -> None:
    batch = SimpleNamespace(x=torch.ones(4))
    calls = [Call(torch, AnyLength(), ((batch,), {}), group=0, inside_step=0)]
    assert as_one_batch(torch, calls) == (calls, 0)


class OneWord(nn.Module):
    """As a tutorial's translator takes in one word after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(9, 8), nn.Linear(8, 8)

    def forward(self, word: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(self.cell(self.words(word).view(1, 1, -1)) + state)
        return state * 2, state


def test_a_network_of_one_sample_only_is_exported_with_one() -> None:
    network, state = OneWord(), torch.zeros(1, 1, 8)
    calls = []
    for word in (torch.tensor([3]), torch.tensor([5])):
        calls.append(Call(torch, network, ((word, state), {}), group=0, inside_step=0))
        answer, state = network(word, state)
        calls[-1].note_output(torch, (answer, state))
    exported, is_fixed, _, links = _export(torch, calls, 1, 0)
    assert (is_fixed, len(links)) == (True, 2)
    with torch.no_grad():
        torch.testing.assert_close(
            exported.module()(torch.tensor([3]), torch.zeros(1, 1, 8), torch.tensor([5]))[-1], state
        )


def test_states_of_one_sample_say_that_the_rows_of_what_is_attended_to_are_no_batch() -> None:
    network, state, attended = nn.GRU(8, 8), torch.zeros(1, 1, 8), torch.zeros(12, 8)
    calls = [Call(torch, network, ((torch.tensor(3), state, attended), {}), group=0, inside_step=0) for _ in range(3)]
    assert _batch_sizes(torch, calls, []) == (1, 0)
    assert _batch_sizes(torch, calls, [12]) == (12, 0)
