"""What networks answer is found in objects of any class, and what they compute on the way is converted."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from predictor_service.features.graphs.graph_description import describe_graph

MACS = 2 * 6 * 5


class Answer(dict[str, Any]):
    """As libraries of diffusion models answer: a dictionary of a class that torch does not know."""


class Attributes:
    """As own code answers."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.network = nn.Linear(3, 3)


@dataclass(slots=True)
class Slots:
    scores: Tensor


class Answering(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer, self.layer = answer, nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


ANSWERS: dict[str, Callable[[Tensor], Any]] = {
    "a dictionary of an own class": lambda scores: Answer(scores=scores),
    "a mapping": lambda scores: UserDict(scores=scores),
    "an object": Attributes,
    "a record with slots": Slots,
    "objects in an object": lambda scores: Answer(first=[Attributes(scores)]),
}


def macs(answer: Callable[[Tensor], Any], folder: Path) -> float:
    export_network(torch, Answering(answer), (torch.ones(2, 6),), {}, folder)
    return describe_graph(convert(folder / EXPORT_FILE)).at_batch(2).forward_macs


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_network_answers_is_found_in_objects_that_torch_takes_for_one_value(kind: str, tmp_path: Path) -> None:
    assert macs(ANSWERS[kind], tmp_path) == MACS


def test_a_network_that_answers_no_tensor_is_refused_by_that(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it answers no tensor that can be found: str"):
        macs(str, tmp_path)


@pytest.mark.parametrize("extreme", [torch.amax, torch.amin])
def test_an_extreme_of_all_numbers_is_converted(extreme: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    assert macs(lambda scores: scores / extreme(scores.abs()), tmp_path) == MACS


def test_an_extreme_of_each_row_stays_one(tmp_path: Path) -> None:
    assert macs(lambda scores: scores / scores.amax(1, keepdim=True), tmp_path) == MACS
