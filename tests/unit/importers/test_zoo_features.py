"""The architectures that sets name bring the figures of their graphs, read as a user's graph is."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from predictor_service.commands.datasets import datasets
from predictor_service.errors import TrainingDataError
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.importers import alnair, gavel, miso, pollux
from predictor_service.importers.imported_set import features_json
from predictor_service.importers.zoo_features import ZooFeatures, described_features
from predictor_service.learning.cross_device_rows import read_step_rows, work_of_rows
from predictor_service.settings import default_datasets_dir
from tests.support.measured_dataset import dense_network


def test_the_table_says_what_the_graph_says(tmp_path: Path) -> None:
    content = dense_network([16, 8, 4])
    (tmp_path / "small.onnx").write_bytes(content)
    run = CliRunner().invoke(
        datasets, ["features", "--graphs", str(tmp_path), "-o", str(tmp_path / "out")], catch_exceptions=False
    )
    assert run.stdout == f"{tmp_path / 'out' / 'features.csv'}\n"
    found = ZooFeatures.load(tmp_path / "out").of("small")
    assert found == described_features(describe_graph(content))
    assert found["forward_macs_per_sample"] == 16 * 8 + 8 * 4
    assert found["saved_for_backward_bytes_per_sample"] == 4 * (8 + 4)
    assert (found["matrix_multiply_nodes"], found["activation_nodes"], found["depth"]) == (2, 2, 2)
    assert ZooFeatures.load(tmp_path / "out").of("large") is None
    assert ZooFeatures.load(tmp_path / "out").of(None) is None


def test_features_fit_into_a_cell() -> None:
    named = json.loads(features_json({}, described_features(describe_graph(dense_network([16, 8])))) or "")
    assert all(name.startswith("graph.") for name in named)


def test_without_a_table_nothing_is_known(tmp_path: Path) -> None:
    assert ZooFeatures.load(tmp_path).of("resnet50") is None


@pytest.mark.parametrize(
    "architectures",
    [
        gavel._ARCHITECTURES.values(),
        alnair._ARCHITECTURES.values(),
        miso._ARCHITECTURES.values(),
        [application.architecture for application in pollux._APPLICATIONS.values()],
    ],
    ids=["gavel", "alnair", "miso", "pollux"],
)
def test_every_architecture_that_a_set_is_mapped_to_has_features(architectures: Collection[str]) -> None:
    table = ZooFeatures.load()
    assert architectures
    assert [name for name in architectures if table.of(name) is None] == []


def test_a_folder_without_graphs_or_with_a_bad_one_is_refused(tmp_path: Path) -> None:
    arguments = ["features", "--graphs", str(tmp_path), "-o", str(tmp_path / "out")]
    with pytest.raises(TrainingDataError, match=r"has no \.onnx file; export the zoo there first"):
        CliRunner().invoke(datasets, arguments, catch_exceptions=False)
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(TrainingDataError, match=r"broken\.onnx: .*; export it again or remove it"):
        CliRunner().invoke(datasets, arguments, catch_exceptions=False)


def test_the_command_wants_one_source() -> None:
    assert "give either --timm or --graphs" in CliRunner().invoke(datasets, ["features", "-o", "out"]).stderr


def test_no_step_of_miso_is_shorter_than_the_arithmetic_of_its_network_at_the_peak_of_its_slice() -> None:
    """A network that is fed other images than it is taken for shows here: at 224 pixels its steps were too fast."""
    rows = read_step_rows(default_datasets_dir() / "public", ["miso"])
    work = work_of_rows(rows)
    forward_flops = work.convolution_flops + work.depthwise_flops + work.product_flops
    peaks = np.array([row.kind.device.peak("tf32") for row in rows])
    shares = 1e3 * 3 * forward_flops / peaks / np.array([row.step_ms for row in rows])
    too_fast = {row.architecture for row, share in zip(rows, shares, strict=True) if share > 1.0}
    assert len({row.architecture for row in rows}) == 7
    assert too_fast == set()
