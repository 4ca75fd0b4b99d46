"""`predict -- COMMAND` refuses what it would refuse in any case before it runs the script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant.capture.captured_job import CapturedJob
from cotenant.cli import graph_input
from cotenant.graph_file import read_graph
from cotenant.v1 import prediction_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor, refuse, serving

GRAPH = Path(__file__).parents[3] / "examples" / "jobs" / "graphs" / "mlp.onnx"
FOUND = CapturedJob(
    graph=read_graph(GRAPH),
    batch_size=32,
    accumulation=1,
    optimizer="adam",
    precision="fp32",
    input_wait_ms=0.0,
    activation_checkpointing=False,
    parameters=1_000,
    covered_ratio=1.0,
    notes=(),
)
COMMAND = ("--", "python", "train.py")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was captured; running the script takes no time here."""
    ran: list[str] = []

    def capture(command: tuple[str, ...], *_: object, **__: object) -> CapturedJob:
        ran.append(" ".join(command))
        return FOUND

    monkeypatch.setattr(graph_input, "capture_here", capture)
    return ran


class Strict(FakePredictor):
    """Knows one device type, and the graphs that it was sent."""

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        if request.device != "a100":
            refuse(context, code_pb2.INVALID_ARGUMENT, f"device {request.device!r} is unknown", reason="UNKNOWN_DEVICE")
        if not request.onnx_graph and request.graph_sha256 not in self.graphs:
            refuse(context, code_pb2.NOT_FOUND, "no such graph", reason="UNKNOWN_GRAPH")
        return super().PredictJob(request, context)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[Strict]:
    fake = Strict()
    with serving(fake) as address:
        monkeypatch.setenv("COTENANT_PREDICTOR", address)
        yield fake


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--device", "rtx 9990"), "'rtx 9990' is unknown"),
        (("--device", "a100,rtx 9990"), "'rtx 9990' is unknown"),
        (("--device", "a100", "--optimizer", "lion"), "unknown optimizer 'lion'"),
        (("--device", "a100", "--device-memory", "3parsec"), "'3parsec' is not a size"),
        (("--device", "a100", "--bind", "x"), "'x' is not NAME=SIZE"),
        (("--device", "a100", "--calibration", "nowhere.json"), "cannot read nowhere.json"),
        (("--device", "a100", "--max-batch", "--micro-batch-size", "2"), "--micro-batch-size goes with one batch"),
        (("--device", "a100,l4", str(GRAPH)), "several jobs are asked about together"),
    ],
)
def test_a_wrong_question_is_refused_before_its_script_runs(
    cotenant: CommandLine, strict: Strict, captures: list[str], flags: tuple[str, ...], words: str
) -> None:
    outcome = cotenant("predict", *flags, *COMMAND)
    assert (outcome.code, captures) == (2, [])
    assert words in " ".join(outcome.err.split())


def test_a_predictor_that_cannot_be_reached_is_told_before_the_script_runs(
    cotenant: CommandLine, captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_PREDICTOR", "127.0.0.1:9")
    outcome = cotenant("predict", *COMMAND)
    assert (outcome.code, captures) == (5, [])


def test_a_right_question_is_asked_about_what_was_captured(
    cotenant: CommandLine, strict: Strict, captures: list[str]
) -> None:
    assert cotenant("predict", "--device", "a100", *COMMAND).code == 0
    assert captures == ["python train.py"]


def test_offline_a_wrong_device_is_refused_before_the_script_runs(cotenant: CommandLine, captures: list[str]) -> None:
    outcome = cotenant("predict", "--offline", "--device", "rtx 9990", *COMMAND)
    assert (outcome.code, captures) == (2, [])
    assert "'rtx 9990' is unknown" in outcome.err
    assert cotenant("predict", "--offline", "--device", "rtx 3090", *COMMAND).code == 0
    assert captures == ["python train.py"]
