"""Bags of embeddings are spelled out for the export, of which exporters write a loop without any shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from cotenant.capture.in_script.spelled_out import look_up_bag
from cotenant.capture.in_script.step_export import EXPORT_FILE, export_network
from predictor_service.features.graphs.graph_description import describe_graph

_WORDS, _WIDTH = 50, 16


class Texts(nn.Module):
    """As torch's tutorial of text classification hands its texts over: one row of words, and where each text begins."""

    def __init__(self, mode: str = "mean", *, has_end: bool = False) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(_WORDS, _WIDTH, mode=mode, include_last_offset=has_end)
        self.head = nn.Linear(_WIDTH, 4)

    def forward(self, words: Tensor, begins: Tensor) -> Tensor:
        answer: Tensor = self.head(self.words(words, begins))
        return answer


def test_bags_of_words_in_one_row_are_as_many_samples_as_there_are_bags(tmp_path: Path) -> None:
    words, begins = torch.ones(17, dtype=torch.long), torch.tensor([0, 3, 9])
    assert export_network(torch, Texts(), (words, begins), {}, tmp_path) == 3
    graph = describe_graph(convert(tmp_path / EXPORT_FILE))
    assert graph.unshaped_nodes == 0
    assert [graph.at_batch(size).forward_macs for size in (3, 6)] == [3 * _WIDTH * 4, 6 * _WIDTH * 4]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("has_end", [True, False])
@pytest.mark.parametrize("has_weights", [True, False])
def test_a_bag_that_is_spelled_out_answers_as_it_did(mode: str, has_end: bool, has_weights: bool) -> None:
    bag = Texts(mode, has_end=has_end).words
    words, begins = torch.arange(17) % _WORDS, torch.tensor([0, 3, 3, 9, 17][: 5 if has_end else 4])
    weights = torch.rand(17) if has_weights and mode == "sum" else None
    torch.testing.assert_close(look_up_bag(torch, bag, words, begins, weights), bag(words, begins, weights))
