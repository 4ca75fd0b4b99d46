"""cotenant.predict and cotenant.fits: plain records about a file or a network, and the examples of their page."""

from __future__ import annotations

import dataclasses
import doctest
import logging
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import grpc
import pandas
import pytest
import torch
from cotenant_profiler.convert_command import convert

import cotenant as package
from cotenant import predictions, programs
from cotenant.calibration_files import calibration_path, keep_calibration
from cotenant.client_errors import InputError, PermissionDeniedError
from cotenant.prediction_questions import Answers
from cotenant.v1 import prediction_pb2
from predictor_service.features.graphs.graph_description import describe_graph
from tests.support.calibrations import calibration
from tests.support.cases import for_each
from tests.support.fake_services import FakePredictor

GRAPHS = Path(__file__).parents[3] / "examples" / "jobs" / "graphs"


class Undecided(torch.nn.Module):
    """Chooses by a number of its data, which no graph can hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if float(x.sum()) > 0 else x.sigmoid()


@pytest.fixture
def converted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converts in this process: a second one would spend seconds on importing torch."""

    def run(verb: str, arguments: list[str], **named: object) -> subprocess.CompletedProcess[str]:
        Path(arguments[2]).write_bytes(convert(Path(arguments[0])))
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(programs, "run_captured", run)


def test_the_examples_of_the_page_hold(predictor: FakePredictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GRAPHS)
    found = doctest.testmod(predictions)
    assert found.attempted > 3
    assert found.failed == 0


def test_a_record_is_plain(predictor: FakePredictor) -> None:
    record = dataclasses.asdict(package.predict(GRAPHS / "mlp.onnx", batch_size=8, device="l4"))
    assert record["batch_size"] == 8
    assert record["largest_batch_size"] == 96
    assert type(record["memory_bytes"]) is int


def test_what_was_measured_of_the_device_at_hand_counts_as_on_the_command_line(
    predictor: FakePredictor, tmp_path: Path
) -> None:
    kept = dataclasses.replace(calibration(), device="NVIDIA L4")
    keep_calibration(calibration_path(tmp_path / "state", kept.device, kept.driver), kept)
    package.predict(GRAPHS / "mlp.onnx", batch_size=8, device="l4")
    (asked,) = (each for each in predictor.seen if isinstance(each, prediction_pb2.PredictJobRequest))
    assert (asked.device, asked.calibration.device) == ("NVIDIA L4", "NVIDIA L4")


def test_a_network_is_exported_and_stays_in_its_mode(predictor: FakePredictor, converted_here: None) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    assert package.predict(network, torch.randn(12, 6)).batch_size == 12
    assert network.training
    assert all(part.training for part in network)
    (graph,) = predictor.graphs.values()
    assert describe_graph(graph).at_batch(12).forward_macs == 12 * (6 * 4 + 4 * 2)


def test_a_device_of_unknown_memory_fits_neither_nor(predictor: FakePredictor) -> None:
    predictor.answer.device_is_generic, predictor.answer.device_memory_bytes = True, 0
    assert package.fits(GRAPHS / "mlp.onnx", batch_size=8, device="NVIDIA X990") is None


@for_each(
    ("model", "inputs", "told"),
    [
        (object(), None, "neither a path nor a torch.nn.Module"),
        (torch.nn.Linear, torch.randn(4, 2), "Linear is a class"),
        (torch.nn.Linear(2, 2), None, "needs example inputs"),
        (torch.nn.Linear(2, 2), (3,), "no tensor is among the inputs"),
        (torch.nn.Linear(2, 2), [[1.0, 2.0]], "no tensor is among the inputs"),
        (torch.nn.Linear(2, 2), torch.randn(4, 3), "the network does not run on these inputs here"),
        (torch.nn.Linear(2, 2), [torch.randn(4, 2)], "does not run on these inputs here: .* must be Tensor, not list"),
        (torch.nn.Linear(2, 2, device="meta"), torch.randn(4, 2), "weights are on the device meta"),
        (Undecided(), torch.randn(4, 2), "torch.export refused the network"),
        (torch.nn.Linear(2, 2), torch.randn(0, 2), "the inputs hold no sample"),
        (GRAPHS / "mlp.onnx", None, "no batch size"),
        (GRAPHS / "absent.onnx", None, "no batch size"),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_its_cause(model: object, inputs: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        package.predict(model, inputs)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": "64"},
        {"batch_size": 6.5},
        {"batch_size": True},
        {"batch_size": 0},
        {"batch_size": 10**9},
        {"optimizer": torch.optim.Adam},
        {"precision": torch.float16},
        {"device": torch.device("cuda")},
        {"device_memory": 40},
    ],
)
def test_what_is_of_another_kind_is_refused_by_its_name_before_anything_else(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(InputError, match=f"^{name}=") as refused:
        package.predict(object(), **{"batch_size": 8, **settings})
    assert refused.value.remedy.startswith(f"e.g. {name}=")


def test_what_simulates_is_named_where_it_is_looked_for() -> None:
    with pytest.raises(AttributeError, match=r"it is cotenant_simulator\.simulate"):
        package.simulate  # noqa: B018


def test_a_notebook_is_offered_what_predicts() -> None:
    assert {"Prediction", "fits", "predict"} <= set(dir(package))


def test_a_traceback_ends_with_the_remedy() -> None:
    with pytest.raises(InputError) as caught:
        package.predict(GRAPHS / "mlp.onnx")
    assert traceback.format_exception(caught.value)[-1] == "remedy: e.g. batch_size=64\n"


def test_the_helper_of_scripts_loads_nothing_of_it() -> None:
    line = "import sys, cotenant.job; assert not {'grpc', 'click', 'cotenant.predictions'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("is_named", [False, True])
def test_a_predictor_that_knows_nobody_here_is_another_users_unless_it_was_named(
    is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionDeniedError("it answers callers that it knows only", code=grpc.StatusCode.UNAUTHENTICATED)

    monkeypatch.delenv("COTENANT_PREDICTOR", raising=False)
    if is_named:
        monkeypatch.setenv("COTENANT_PREDICTOR", "127.0.0.1:1")
    monkeypatch.setattr(predictions, "is_serving", lambda *_, timeout_s: True)
    monkeypatch.setattr(predictions, "ask_service", refuse)
    monkeypatch.setattr(predictions, "point_at_state", lambda: None)
    answer = prediction_pb2.PredictJobResponse(device="offline")
    monkeypatch.setattr(predictions, "ask_offline", lambda _: Answers(jobs=[answer]))
    if is_named:
        with pytest.raises(PermissionDeniedError):
            package.predict(GRAPHS / "mlp.onnx", batch_size=8)
    else:
        assert package.predict(GRAPHS / "mlp.onnx", batch_size=8).device == "offline"


class Listener(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record)


def test_a_refusal_comes_without_tracebacks_of_torch() -> None:
    listener = Listener()
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(listener)
    try:
        with pytest.raises(InputError, match="does not run on these inputs here"):
            package.predict(torch.nn.Linear(2, 2), torch.randn(4, 3))
    finally:
        logger.removeHandler(listener)
    assert listener.told == []
    assert not logger.disabled


def test_a_batch_size_may_come_from_a_data_frame(predictor: FakePredictor) -> None:
    (size,) = pandas.DataFrame({"batch": [24]}).batch
    assert package.predict(GRAPHS / "mlp.onnx", batch_size=size).batch_size == 24


def test_every_question_names_the_graph_by_its_hash(predictor: FakePredictor) -> None:
    package.predict(GRAPHS / "mlp.onnx", batch_size=8)
    (request,) = [one for one in predictor.seen if isinstance(one, prediction_pb2.PredictJobRequest)]
    assert request.graph_sha256 in predictor.graphs


def test_a_calibration_that_cannot_be_read_is_among_the_warnings(predictor: FakePredictor, tmp_path: Path) -> None:
    corrupt = calibration_path(tmp_path / "state", "NVIDIA L4", "1")
    corrupt.parent.mkdir(parents=True)
    corrupt.write_text("{")
    warnings = package.predict(GRAPHS / "mlp.onnx", batch_size=8, device="l4").warnings
    assert [str(corrupt) in warning for warning in warnings].count(True) == 1
