from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from cotenant.graph_file import graph_sha256, read_graph
from examples.training.graph_export import export_graph
from examples.training.tasks import TASKS
from tests.support.cases import sampled

# The exporter warns of deprecated functions that it calls itself.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

JOB_GRAPHS = Path("examples/jobs/graphs")


def export(model: str, path: Path, seed: int = 0) -> bytes:
    task = TASKS[model]
    torch.manual_seed(seed)
    export_graph(task.build(), task.generate(torch.Generator().manual_seed(0)).inputs[:2], path)
    return read_graph(path)


def test_the_exported_file_is_the_committed_one_and_holds_the_graph_but_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "resnet.onnx"
    assert graph_sha256(export("resnet", path)) == graph_sha256(read_graph(JOB_GRAPHS / "resnet.onnx"))
    graph = onnx.load(path, load_external_data=False).graph
    # The exporter leaves tensors of up to 256 bytes (biases) in the file; what is sent to a service has none at all.
    weights = [item for item in graph.initializer if item.data_type == onnx.TensorProto.FLOAT]
    assert len(weights) > 20
    assert all(len(item.raw_data) <= 256 for item in weights)
    stripped = onnx.load_model_from_string(read_graph(path)).graph.initializer
    assert not any(item.raw_data for item in stripped if item.data_type == onnx.TensorProto.FLOAT)
    assert [node.op_type for node in graph.node].count("BatchNormalization") == 7
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_another_training_of_a_network_has_the_graph_that_is_committed_for_the_example_job(tmp_path: Path) -> None:
    again = export("cnn", tmp_path / "graph.onnx", seed=1)
    assert graph_sha256(again) == graph_sha256(read_graph(JOB_GRAPHS / "cnn.onnx"))


@pytest.mark.parametrize("model", sampled(["recommender", "cnn"], 1))
def test_the_graph_committed_for_the_example_job_is_that_of_the_script(model: str, tmp_path: Path) -> None:
    assert export(model, tmp_path / "graph.onnx") == (JOB_GRAPHS / f"{model}.onnx").read_bytes()
