"""Questions about a graph that are answered by a program which is started for them only."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from cotenant.prediction_questions import hash_of
from predictor_service.commands import predict_many, program
from predictor_service.commands.predict_many import predict_many_command
from predictor_service.errors import UnboundDimensionError


def graph_of_sequences(path: Path) -> Path:
    """A graph with an open batch and an open length."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), str(path))
    return path


@pytest.mark.parametrize("bindings", [{"length": 16}, {"length": 16, "batch": 8}])
def test_each_question_may_bind_the_dimensions_of_a_graph_that_came_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bindings: dict[str, int]
) -> None:
    monkeypatch.setattr(predict_many, "ensure_version", lambda *_: None)
    graph = graph_of_sequences(tmp_path / "g.onnx")
    settings = {"globalBatchSize": "8", "dimensionBindings": bindings}
    jobs = [{"graphSha256": hash_of(graph), "device": name, "settings": settings} for name in ("a100", "l4")]
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps({"graphs": [str(graph)], "jobs": jobs}))
    done = CliRunner().invoke(predict_many_command, [str(questions), "--state-dir", str(tmp_path / "state")])
    assert done.exception is None, repr(done.exception)
    assert [job["device"] for job in json.loads(done.stdout)["jobs"]] == ["NVIDIA A100-SXM4-40GB", "NVIDIA L4"]


def test_a_dimension_without_a_size_is_told_with_the_flag_that_gives_it_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ensure_version", lambda *_: None)
    graph, state_dir = graph_of_sequences(tmp_path / "g.onnx"), str(tmp_path / "state")
    words = [str(graph), "--batch-size", "8", "--device", "l4", "--state-dir", state_dir]
    refused = CliRunner().invoke(program.predict_command, words).exception
    assert isinstance(refused, UnboundDimensionError), repr(refused)
    assert refused.remedy == "set --bind length=SIZE"
