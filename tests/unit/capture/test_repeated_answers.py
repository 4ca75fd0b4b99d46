"""Long validations before the first step are cut short, short ones are not."""

from __future__ import annotations

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
        ask(answers, network, torch.full((3,), float(number)))["x"].add_(1)  # and what is written to it stays outside
    assert network.calls == calls


def test_other_sizes_and_other_numbers_are_computed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_answers, "PATIENCE_S", 0.0)
    answers, network = RepeatedAnswers(torch), Counting()
    shapes = [ask(answers, network, torch.ones(size), scale=scale)["x"] for size in (2, 3) for scale in (1.0, 2.0)]
    assert [(len(each), float(each[0])) for each in shapes] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert network.calls == 4
