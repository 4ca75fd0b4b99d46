"""Passes that ask for gradients of inputs, as attacks and Langevin sampling do, are none that a step gathers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cotenant.capture.in_script.input_gradients import note_dropped, without_dropped
from cotenant.capture.in_script.recorder import Recorder
from cotenant.capture.in_script.step_window import Window, find_window

_ATTACKS = 3
_SAMPLES = 6


def attack(network: nn.Module, batch: Tensor, how: str) -> Tensor:
    """Moves a batch against the network, as scripts write it."""
    moved = batch
    for _ in range(_ATTACKS):
        moved = moved.detach().requires_grad_()
        offset = torch.zeros_like(batch, requires_grad=True)
        if how == "frozen":
            network.requires_grad_(False)
        if how == "network zeroes":
            network.zero_grad()
        network(moved + offset if how == "offset" else moved).sum().backward()
        network.requires_grad_(True)
    return moved.detach()


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setattr(Recorder, "_finish", lambda *words, **named: None)
    installed = Recorder(torch, tmp_path)
    installed.install()
    try:
        yield installed
    finally:
        installed.uninstall()


def train(recorder: Recorder, how: str, *, parts: int = 1) -> Window:
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        batch = attack(network, torch.ones(_SAMPLES, 4), how)
        optimizer.zero_grad()
        for part in batch.chunk(parts):
            network(part).sum().backward()
        recorder._after_step(optimizer, (), {})
        recorder.is_writing = False
    return find_window(recorder.calls, recorder.steps, [optimizer], is_whole=True)


@pytest.mark.parametrize("how", ["optimizer zeroes", "network zeroes", "offset", "frozen"])
@pytest.mark.parametrize("parts", [1, 2])
def test_passes_of_an_attack_are_no_part_of_the_batch(recorder: Recorder, how: str, parts: int) -> None:
    window = train(recorder, how, parts=parts)
    assert (window.accumulation, window.dropped_passes) == (parts, _ATTACKS)
    assert [call.samples for call in window.calls] == [_SAMPLES // parts]


@pytest.mark.parametrize("asks", [True, False])
def test_passes_whose_gradients_are_set_to_zero_are_told_by_the_gradients_that_they_ask_of_inputs(
    recorder: Recorder, asks: bool
) -> None:
    # Without them a script gathers the gradients itself, as where they are cut for each sample: those are the batch.
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.ones(2, 4, requires_grad=asks)).sum().backward()
        recorder._after_step(optimizer, (), {})
    window = find_window(recorder.calls, recorder.steps, [optimizer], is_whole=True)
    assert (window.accumulation, window.dropped_passes) == ((1, 2) if asks else (3, 0))


def test_what_a_generator_makes_for_a_network_that_does_not_learn_meanwhile_is_a_pass(
    recorder: Recorder,
) -> None:
    makes, judges = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (makes, judges)]
    for _ in range(2):
        made = makes(torch.ones(3, 4))
        judges(made.detach()).sum().backward()
        recorder._after_step(optimizers[1], (), {})
        judges.requires_grad_(False)
        judges(made).sum().backward()
        judges.zero_grad()
        recorder._after_step(optimizers[0], (), {})
        judges.requires_grad_(True)
    assert not any(call.is_dropped for call in recorder.calls)


def test_a_pass_for_gradients_of_inputs_that_no_pass_of_training_is_like_is_a_part_of_the_step(
    recorder: Recorder,
) -> None:
    # As in virtual adversarial training, whose last pass is of two calls: all are in the step, with what they compute.
    network, batch = nn.Linear(4, 2), torch.ones(_SAMPLES, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        offset = torch.zeros_like(batch, requires_grad=True)
        network(batch + offset).sum().backward()
        network.zero_grad()
        (network(batch).sum() + network(batch + offset.detach()).sum()).backward()
        recorder._after_step(optimizer, (), {})
    window = find_window(recorder.calls, recorder.steps, [optimizer], is_whole=True)
    assert (window.accumulation, window.dropped_passes, len(window.calls)) == (1, 0, 3)


def call(**changes: Any) -> Any:
    """What is known of a call in the second of three passes, with two weights that learn."""
    known = {"group": 1, "asks_of_input": True, "learning": {1, 2}, "is_dropped": False, "has_parameters": True}
    return SimpleNamespace(**{**known, **changes})


@pytest.mark.parametrize(
    ("changes", "zeroed", "is_dropped"),
    [
        ({}, {1, 2, 3}, True),
        ({}, {1, 3}, False),  # the gradient of a weight is kept
        ({"group": 0}, {1, 2}, False),  # a step has used it
        ({"group": 2}, {1, 2}, False),  # it comes later
        ({"asks_of_input": False}, {1, 2}, False),
    ],
)
def test_a_pass_is_thrown_away_where_all_its_weights_forget_it_before_a_step(
    changes: dict[str, Any], zeroed: set[int], is_dropped: bool
) -> None:
    found = call(**changes)
    note_dropped([found], zeroed, begin=1, end=2)
    assert found.is_dropped is is_dropped


def test_a_pass_counts_where_one_of_its_calls_does_and_where_none_is_left() -> None:
    dropped, kept, loss = call(is_dropped=True), call(), call(has_parameters=False)
    assert without_dropped([[dropped, loss], [kept, loss]]) == ([[kept, loss]], 1)
    assert without_dropped([[dropped, kept], [kept]]) == ([[dropped, kept], [kept]], 0)
    assert without_dropped([[dropped], [dropped]]) == ([[dropped], [dropped]], 0)
