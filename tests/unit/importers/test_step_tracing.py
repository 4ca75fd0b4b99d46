"""A traced step keeps, allocates and computes what a hand count says, and what the graph says."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from cotenant_profiler.zoo.registry import find
from torch import Tensor, nn

from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.importers.shape_memory import ShapeMemory
from predictor_service.importers.step_tracing import PEAK_BATCHES, trace_step
from tests.support.cases import for_each

STANDIN = Path(__file__).parents[3] / "datasets" / "cpu_standin"
REPLAYED_ALIKE = {"lenet", "mlp", "mlp_deep", "mobilenet"}
"""Elsewhere small tensors of a trace and a graph are cut from other blocks, and rests differ."""


def traced(*layers: nn.Module, shape: tuple[int, ...] = (3, 8, 8)) -> dict[str, float]:
    with torch.device("meta"):
        model = nn.Sequential(*layers)
    return trace_step(model, shape)


def on_meta(kind: type[nn.Module], *arguments: int, **named: object) -> nn.Module:
    with torch.device("meta"):
        return kind(*arguments, **named)


def test_an_in_place_activation_keeps_no_second_copy() -> None:
    convolution = on_meta(nn.Conv2d, 3, 4, 3, padding=1)
    normalization = on_meta(nn.BatchNorm2d, 4)
    features = traced(convolution, normalization, nn.ReLU(inplace=True))
    image, plane = 3 * 64 * 4, 4 * 64 * 4
    assert features["saved_for_backward_bytes_per_sample"] == image + 2 * plane
    assert features["saved_for_backward_bytes_constant"] == 2 * 4 * 4
    assert features["forward_macs_per_sample"] == 64 * 4 * 27
    assert features["largest_unfolded_bytes_per_sample"] == 64 * 27 * 4
    assert (features["convolution_nodes"], features["normalization_nodes"], features["activation_nodes"]) == (1, 1, 1)
    assert features["elementwise_nodes"] == 0


def test_parameters_and_buffers_are_not_part_of_the_step() -> None:
    features = traced(on_meta(nn.Linear, 10, 20, bias=False), shape=(10,))
    assert features["parameter_bytes"] == 800
    assert features["allocated_bytes_constant"] == 0
    assert features["saved_for_backward_bytes_per_sample"] == 40
    assert features["forward_macs_per_sample"] == 200


def test_the_peak_of_small_batches_is_that_of_gradients() -> None:
    features = traced(on_meta(nn.Linear, 100, 1000, bias=False), on_meta(nn.Linear, 1000, 5, bias=False), shape=(100,))
    assert features["parameter_bytes"] <= features["step_peak_bytes_at_batch_1"] <= 1.2 * features["parameter_bytes"]


def test_the_peak_is_convex_in_the_batch() -> None:
    features = traced(on_meta(nn.Conv2d, 3, 8, 3), nn.GELU(), nn.Flatten(), on_meta(nn.Linear, 288, 100))
    peaks = [features[f"step_peak_bytes_at_batch_{batch}"] for batch in PEAK_BATCHES]
    slopes = [
        (end - start) / (right - left)
        for (left, start), (right, end) in pairwise(zip(PEAK_BATCHES, peaks, strict=True))
    ]
    assert slopes == sorted(slopes)


class _Attention(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)


def test_attention_keeps_rows_instead_of_scores() -> None:
    linear = on_meta(nn.Linear, 16, 16, bias=False)
    features = traced(linear, _Attention(), shape=(32, 16))
    tokens = 32 * 16 * 4
    assert features["attention_macs_per_sample"] == 2 * 32 * 32 * 16
    assert features["largest_score_bytes_per_sample"] == 32 * 32 * 4
    assert features["saved_for_backward_bytes_per_sample"] == 3 * tokens + 32 * 4
    assert nn.functional.scaled_dot_product_attention.__module__ != "predictor_service.importers.step_tracing"


class _Remembering(nn.Module):
    """Computes a table in its first pass, as some image models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(4, device="meta"))
        self.table: Tensor | None = None

    def forward(self, sample: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.empty(4, device="meta").exp()
        return sample * self.scale * self.table


def test_a_table_of_the_first_pass_is_no_part_of_a_step() -> None:
    assert trace_step(_Remembering(), (4,))["parameters"] == 4


class _Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(4, device="meta"))

    def forward(self, sample: Tensor) -> Tensor:
        for _ in range(sample.shape[0]):
            sample = sample * self.scale
        return sample


def test_a_model_whose_operators_depend_on_the_batch_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"\d+ operators run at one batch and \d+ at another"):
        trace_step(_Growing(), (4,))


@for_each(
    "architecture",
    [
        "autoencoder",
        "densenet",
        "lenet",
        "mlp",
        "mlp_deep",
        "mobilenet",
        "resnet",
        "resnet_wide",
        "vector_autoencoder",
        "vgg",
    ],
)
def test_the_trace_agrees_with_the_graph_to_the_byte(architecture: str) -> None:
    with (STANDIN / "solo.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["architecture"] == architecture)
    graph = describe_graph((STANDIN / "graphs" / f"{row['graph_sha256']}.onnx").read_bytes())
    with torch.device("meta"):
        model = find(architecture).build()
    features = trace_step(model, tuple(map(int, row["input_shape"].split("x"))))
    kept = features["saved_for_backward_bytes_per_sample"] - features["input_bytes_per_sample"]
    assert features["parameters"] == graph.stored.parameters
    assert features["forward_macs_per_sample"] == graph.scalars["forward_macs"].per_sample
    assert kept == graph.scalars["activation_bytes_saved"].per_sample
    if architecture in REPLAYED_ALIKE:
        assert features["reserved_bytes_per_sample"] == graph.scalars["reserved_bytes"].per_sample


def test_what_is_reserved_extends_to_a_batch_beside_which_constants_count_little() -> None:
    narrow = traced(on_meta(nn.Linear, 8, 1000), on_meta(nn.Linear, 1000, 8), shape=(8,))
    # The hidden tensor, its gradient and the output; gradients of parameters stay and are left out.
    assert 2 * 4000 <= narrow["reserved_bytes_per_sample"] <= 2 * 4000 + 3 * 32


def test_remembering_shapes_changes_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def block() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout(0.1), nn.MaxPool2d(1)
            )

    def features() -> dict[str, float]:
        torch.manual_seed(0)
        return traced(block(), block(), nn.Flatten(), on_meta(nn.Linear, 512, 4), nn.Softmax(1), shape=(8, 8, 8))

    remembered = features()
    runs: list[object] = []

    def run_always(_: ShapeMemory, func: Any, args: Any, kwargs: Any) -> Any:
        runs.append(func)
        return func(*args, **kwargs)

    monkeypatch.setattr(ShapeMemory, "run", run_always)
    assert remembered == features()
    assert runs


def test_operators_on_numbers_are_never_remembered() -> None:
    memory, numbers = ShapeMemory(), torch.arange(4)
    for added in (1, 2):
        assert memory.run(torch.ops.aten.add.Scalar, (numbers, added), {}).tolist() == [
            added + item for item in range(4)
        ]
        assert memory.run(torch.ops.aten.arange.default, (4,), {}).tolist() == [0, 1, 2, 3]


def test_views_and_in_place_operators_are_never_remembered() -> None:
    memory, tensor = ShapeMemory(), torch.empty(4, 4, device="meta")
    for _ in range(2):
        view = memory.run(torch.ops.aten.view.default, (tensor, [16]), {})
        assert view.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        assert memory.run(torch.ops.aten.relu_.default, (tensor,), {}) is tensor
    first, second = (memory.run(torch.ops.aten.relu.default, (tensor,), {}) for _ in range(2))
    assert first.shape == second.shape
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata
