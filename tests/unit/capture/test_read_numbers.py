"""Networks that make Python numbers of their inputs are exported with the numbers of the last step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from cotenant.capture.in_script.cpu_redirect import Requested
from cotenant.capture.in_script.read_numbers import ReadNumbers
from cotenant.capture.in_script.recorder import Recorder
from cotenant.capture.in_script.step_export import EXPORT_FILE, export_step
from cotenant.capture.in_script.step_window import Call, Window
from predictor_service.features.graphs.graph_description import describe_graph

_WIDTH, _ANSWERS, _NODES = 8, 4, 12
_GRAPHS = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)


class Pooled(nn.Module):
    """Sums the nodes of each graph, of which the index tells the number: as graph networks of every library do."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _ANSWERS)

    def forward(self, nodes: Tensor, graphs: Tensor) -> Tensor:
        count = int(graphs.max()) + 1
        sums = nodes.new_zeros(count, _WIDTH).index_add(0, graphs, self.before(nodes))
        answer: Tensor = self.behind(sums)
        return answer


class Pieces(nn.Module):
    """Reads another number on the same line each time."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(_WIDTH, _ANSWERS)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([self.head(rows[: int(length)]).sum(0) for length in lengths])


class Labelled(nn.Module):
    """Takes the labels with the batch, as networks of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(_WIDTH, _ANSWERS)

    def forward(self, rows: Tensor, classes: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(rows), classes)


def captured(
    network: nn.Module, arguments: tuple[Any, ...], folder: Path, loader_sizes: Sequence[int] = ()
) -> dict[str, Any]:
    recorder = Recorder(torch, folder)
    recorder.requested = Requested()
    recorder.loader_batch_sizes = list(loader_sizes)
    calls = [Call(torch, network, (arguments, {}), group=0, inside_step=0)]
    return export_step(recorder, Window(calls, 1, 1, [torch.optim.SGD(network.parameters(), lr=0.1)]))


def test_a_network_that_counts_the_graphs_of_its_batch_is_captured_with_them(tmp_path: Path) -> None:
    result = captured(Pooled(), (torch.rand(_NODES, _WIDTH), _GRAPHS), tmp_path)
    assert (result["status"], result["is_batch_fixed"], result["micro_batch_size"]) == ("captured", True, _NODES)
    assert [place.partition(":")[0] for place in result["read_numbers"]] == ["test_read_numbers.py"]
    assert result["indexed_samples"] == 3
    graph = describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(_NODES)
    assert graph.forward_macs == _NODES * _WIDTH * _WIDTH + 3 * _WIDTH * _ANSWERS


def test_numbers_of_one_line_are_told_in_their_order(tmp_path: Path) -> None:
    result = captured(Pieces(), (torch.rand(5, _WIDTH), torch.tensor([2, 5, 3])), tmp_path)
    assert result["status"] == "captured"
    graph = describe_graph(convert(tmp_path / EXPORT_FILE)).at_batch(5)
    assert graph.forward_macs == (2 + 5 + 3) * _WIDTH * _ANSWERS


def test_numbers_of_a_network_whose_export_was_refused_are_not_those_of_the_next_one() -> None:
    read, rows = ReadNumbers(torch), torch.rand(5, _WIDTH)
    arguments = (rows, torch.tensor([2, 5, 3]))
    for network in (Pieces(), Pieces()):
        seen: list[int] = []
        network.head.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(len(inputs[0])))
        with read.of_call(network, arguments, {}):
            del seen[:]
            with pytest.raises(IndexError):
                network(rows, arguments[1][:1])[1]
        with read.of_call(network, arguments, {}):
            del seen[:]
            network(*arguments)
        assert seen == [2, 5, 3]
    assert len(read.places) == 1


def test_a_network_that_reads_no_number_is_run_no_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadNumbers, "of_call", lambda *_: pytest.fail("read"))
    result = captured(nn.Linear(_WIDTH, 2), (torch.rand(3, _WIDTH),), tmp_path)
    assert (result["status"], result["read_numbers"], result["indexed_samples"]) == ("captured", [], 0)


@pytest.mark.parametrize(("loader_sizes", "samples"), [([], 2), ([32], 2), ([4], 0)])
def test_labels_that_happen_to_rise_are_no_index_where_a_loader_says_the_batch(
    loader_sizes: list[int], samples: int, tmp_path: Path
) -> None:
    labels = torch.tensor([0, 1, 1, 1])
    result = captured(Labelled(), (torch.rand(4, _WIDTH), labels), tmp_path, loader_sizes)
    assert (result["status"], result["indexed_samples"]) == ("captured", samples)


@pytest.mark.parametrize("index", [torch.arange(12), torch.tensor([0] * 6 + [3] * 6), torch.zeros(12).long()])
def test_an_index_that_counts_nothing_is_none_of_samples(index: Tensor, tmp_path: Path) -> None:
    result = captured(nn.Embedding(12, 4), (index,), tmp_path)
    assert (result["status"], result["indexed_samples"]) == ("captured", 0)


def test_reading_leaves_tensors_as_they_were() -> None:
    own = {name: vars(torch.Tensor).get(name) for name in ("__int__", "item", "tolist")}
    read = ReadNumbers(torch)
    network = Pooled()
    with read.of_call(network, (torch.rand(_NODES, _WIDTH), _GRAPHS), {}):
        assert vars(torch.Tensor).get("item") is not own["item"]
    assert {name: vars(torch.Tensor).get(name) for name in own} == own
