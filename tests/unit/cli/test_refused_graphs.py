"""Whoever refuses a graph was sent bytes; people are told which file it was."""

from __future__ import annotations

from pathlib import Path

import grpc
import onnx
import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]
from onnx import TensorProto, helper

from cotenant import prediction_questions
from cotenant.v1 import prediction_pb2
from predictor_service import errors
from predictor_service.grpc_api import status_codes
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, FakeScheduler, refuse, serving


@pytest.fixture
def cyclic(tmp_path: Path) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes.append(helper.make_node("Relu", ["b"], ["y"]))
    path = tmp_path / "cyclic.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), str(path))
    return path


class Refusing(FakePredictor):
    """Takes no graph for one."""

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        refuse(context, code_pb2.INVALID_ARGUMENT, "the graph has a cycle", reason="MALFORMED_GRAPH")
        raise AssertionError("refuse does not return")

    def UploadGraph(  # noqa: N802
        self, request_iterator: object, context: grpc.ServicerContext
    ) -> prediction_pb2.UploadGraphResponse:
        refuse(context, code_pb2.INVALID_ARGUMENT, "the graph has a cycle", reason="MALFORMED_GRAPH")
        raise AssertionError("refuse does not return")


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--batch-size", "8"),
        ("predict", "--batch-size", "8,16"),
        ("submit", "--batch-size", "8", "--steps", "5", "--graph"),
    ],
)
def test_a_graph_that_a_service_refuses_is_named_by_its_file(
    cotenant: CommandLine,
    scheduler: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    cyclic: Path,
    words: tuple[str, ...],
) -> None:
    command = ("--", "python", "train.py") if words[0] == "submit" else ()
    with serving(Refusing()) as address:
        monkeypatch.setenv("COTENANT_PREDICTOR", address)
        outcome = cotenant(*words, str(cyclic), *command)
    assert outcome.code == 2
    assert f"{cyclic}: the graph has a cycle" in outcome.err


@pytest.mark.parametrize("batches", ["8", "8,16"])
def test_a_graph_that_is_refused_offline_is_named_by_its_file(
    cotenant: CommandLine, cyclic: Path, batches: str
) -> None:
    outcome = cotenant("predict", str(cyclic), "--offline", "--batch-size", batches)
    assert outcome.code == 2
    assert f"{cyclic}: the graph has a cycle through b" in outcome.err


def test_every_refusal_of_a_graph_is_told_with_its_file() -> None:
    reasons = {status_codes._reason(kind) for kind in errors.GraphError.__subclasses__()}
    assert reasons == prediction_questions._REFUSALS_OF_GRAPHS
