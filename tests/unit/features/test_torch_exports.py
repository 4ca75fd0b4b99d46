"""The whole way from a PyTorch module: exported as the documentation asks, stripped, described."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cotenant.graph_file import graph_sha256, read_graph
from predictor_service.features.graphs.graph_description import describe_graph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Exporting a model while it is in training mode:UserWarning"),
]


class SmallNetwork(torch.nn.Module):
    """A convolution with normalization, a pooling, a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.normalization = torch.nn.BatchNorm2d(16)
        self.hidden = torch.nn.Linear(16 * 8 * 8, 32)
        self.output = torch.nn.Linear(32, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.normalization(self.convolution(image)))
        x = torch.nn.functional.max_pool2d(x, 2).flatten(1)
        answer: torch.Tensor = self.output(torch.relu(self.hidden(x)))
        return answer


def export(folder: Path) -> None:
    torch.set_num_threads(1)
    program = torch.onnx.export(
        SmallNetwork().train(),
        (torch.zeros(4, 3, 16, 16),),
        dynamo=True,
        optimize=False,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    assert program is not None
    program.save(folder / "inside.onnx", external_data=False)
    program.save(folder / "outside.onnx", external_data=True)


def test_an_export_is_stripped_and_described_as_the_module_is(tmp_path: Path) -> None:
    export(tmp_path)
    stripped = [read_graph(tmp_path / file) for file in ("inside.onnx", "outside.onnx")]

    assert len({graph_sha256(data) for data in stripped}) == 1
    assert b"stack_trace" not in stripped[0]
    assert b"SmallNetwork" not in stripped[0]
    description = describe_graph(stripped[0])
    features = description.at_batch(8)
    assert description.warnings == ()
    assert features.parameters == sum(weight.numel() for weight in SmallNetwork().parameters())
    assert features.buffers == 32
    assert features.forward_macs == 8 * (16 * 16 * 16 * 27 + 1024 * 32 + 32)
