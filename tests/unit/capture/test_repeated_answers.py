"""Long validations before the first step are cut short, short ones are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cotenant.capture.in_script import repeated_answers
from cotenant.capture.in_script.repeated_answers import RepeatedAnswers


class Counting(nn.Module):
    """Knows how often it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        self.calls += 1
        return {"x": x * scale}


def ask(answers: RepeatedAnswers, network: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    own = nn.Module.__call__
    found: dict[str, Tensor] = answers.answer(own, network, args, kwargs)
    return found


@pytest.mark.parametrize(("patience_s", "calls"), [(0.0, 1), (1e9, 5)])
def test_a_network_is_computed_once_for_inputs_of_one_size_where_much_time_was_spent(
    patience_s: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_answers, "PATIENCE_S", patience_s)
    answers, network = RepeatedAnswers(torch), Counting()
    for number in range(5):
        ask(answers, network, torch.full((3,), float(number)))
    assert network.calls == calls


def test_what_a_script_does_with_an_answer_does_not_change_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_answers, "PATIENCE_S", 0.0)
    answers, network = RepeatedAnswers(torch), Counting()
    for _ in range(3):
        taken = ask(answers, network, torch.ones(3)).pop("x")
        assert float(taken.sum()) == 3
        taken.add_(1)


@dataclass
class Graphs:
    """A batch that is no tensor, as of libraries for graphs, or a cache that grows with each word."""

    x: Tensor


class OfGraphs(Counting):
    """Takes its batch as an object."""

    def forward(self, batch: Graphs) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(batch.x)


def test_what_is_asked_with_an_object_is_computed_each_time_because_nothing_tells_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated_answers, "PATIENCE_S", 0.0)
    answers, network = RepeatedAnswers(torch), OfGraphs()
    assert [len(ask(answers, network, Graphs(torch.ones(size)))["x"]) for size in (3, 3, 5)] == [3, 3, 5]
    assert network.calls == 3


def test_other_sizes_and_other_numbers_are_computed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_answers, "PATIENCE_S", 0.0)
    answers, network = RepeatedAnswers(torch), Counting()
    shapes = [ask(answers, network, torch.ones(size), scale=scale)["x"] for size in (2, 3) for scale in (1.0, 2.0)]
    assert [(len(each), float(each[0])) for each in shapes] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert network.calls == 4
