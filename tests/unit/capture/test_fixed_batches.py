"""Graphs that hold for one batch only are read with the batch that they were exported with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cotenant_profiler.convert_command import convert
from torch import Tensor, nn

from cotenant.capture.in_script.cpu_redirect import Requested
from cotenant.capture.in_script.recorder import Recorder
from cotenant.capture.in_script.step_export import EXPORT_FILE, export_step
from cotenant.capture.in_script.step_window import Call, Window
from predictor_service.features.graphs.graph_description import describe_graph

_WIDTH, _ANSWERS = 8, 4


class Rows(nn.Module):
    """Takes its batch apart, so that its graph holds for this one only; a table may come before the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(_WIDTH, _ANSWERS)

    def forward(self, *given: Tensor) -> Tensor:
        return torch.stack([*self.head(given[-1])]) * float(len([*given[-1]]))


class Images(Rows):
    """Takes a list of images, of which each row of each channel goes through the layer."""

    def forward(self, images: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        return torch.stack([self.head(image) for image in images])


class Records(Images):
    """The same, each image in a record beside what is known of it, as Detectron2 and its kin take a batch."""

    def forward(self, records: Sequence[dict[str, Any]]) -> Tensor:  # type: ignore[override]
        return super().forward([record["image"] for record in records])


def record() -> dict[str, Any]:
    return {"image": torch.rand(3, 2, _WIDTH), "boxes": torch.rand(7, 4), "height": 2}


def sample() -> Tensor:
    return torch.rand(1, _WIDTH)


@pytest.mark.parametrize(
    ("network", "calls", "samples", "unseen", "rows"),
    [
        (Rows(), [(torch.rand(6, _WIDTH),)], 6, 0, 1),
        (Rows(), [(sample(),), (sample(),), (sample(),)], 3, 0, 1),
        (Rows(), [(torch.rand(5, 2), torch.rand(6, _WIDTH))], 6, 6, 1),
        (Images(), [([torch.rand(3, 2, _WIDTH) for _ in range(5)],)], 5, 5, 3 * 2),
        (Records(), [([record() for _ in range(5)],)], 5, 5, 3 * 2),
    ],
    ids=["a batch", "samples one by one", "a table before the batch", "images in a list", "images in records"],
)
def test_a_graph_of_one_batch_is_read_as_of_that_batch(  # noqa: PLR0917
    network: nn.Module, calls: list[tuple[Any, ...]], samples: int, unseen: int, rows: int, tmp_path: Path
) -> None:
    recorder = Recorder(torch, tmp_path)
    recorder.requested, recorder.loader_batch_sizes = Requested(), [samples]
    seen = [Call(torch, network, (args, {}), group=0, inside_step=0) for args in calls]
    result = export_step(recorder, Window(seen, 1, 1, [torch.optim.SGD(network.parameters(), lr=0.1)]))
    assert (result["status"], result["is_batch_fixed"], result["micro_batch_size"]) == ("captured", True, samples)
    assert result["unseen_batch"] == unseen
    graph = describe_graph(convert(tmp_path / EXPORT_FILE), {"batch": unseen} if unseen else None)
    assert graph.at_batch(samples).forward_macs == samples * rows * _WIDTH * _ANSWERS


class Upsampler(nn.Module):
    """As those of diffusers: large batches are laid out anew, since some kernels take no other layout."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(_WIDTH, _ANSWERS)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.head(rows)
        return made.contiguous() if made.shape[0] >= 64 else made


@pytest.mark.parametrize(("network", "most"), [(Upsampler(), 63), (nn.Linear(_WIDTH, _ANSWERS), 0)])
def test_a_network_that_decides_by_a_large_batch_stays_open_for_smaller_ones(
    network: nn.Module, most: int, tmp_path: Path
) -> None:
    recorder = Recorder(torch, tmp_path)
    recorder.requested = Requested()
    seen = [Call(torch, network, ((torch.rand(6, _WIDTH),), {}), group=0, inside_step=0)]
    result = export_step(recorder, Window(seen, 1, 1, [torch.optim.SGD(network.parameters(), lr=0.1)]))
    assert (result["status"], result["is_batch_fixed"], result["batch_most"]) == ("captured", False, most)
    graph = describe_graph(convert(tmp_path / EXPORT_FILE))
    assert [graph.at_batch(size).forward_macs for size in (3, 128)] == [3 * _WIDTH * _ANSWERS, 128 * _WIDTH * _ANSWERS]
