"""Several questions about jobs in one go: to a running predictor, or to one that is started for them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from cotenant.client import PredictorClient
from cotenant.client_errors import InputError, ProgramError, ServiceError
from cotenant.command_run import EXIT_NOT_FOUND, EXIT_USAGE
from cotenant.device_calibration import DeviceCalibration
from cotenant.device_calibration_message import calibration_message
from cotenant.graph_file import GraphFileError, graph_sha256, read_graph
from cotenant.programs import run_captured
from cotenant.v1 import prediction_pb2

OFFLINE_TIMEOUT_S: Final = 600.0
NO_SUCH_GRAPH: Final = "UNKNOWN_GRAPH"
_REFUSALS_OF_GRAPHS: Final = frozenset({"MALFORMED_GRAPH", "UNSUPPORTED_GRAPH", "GRAPH_LIMIT", "UNBOUND_DIMENSION"})
Answer = TypeVar("Answer", bound=Message)
Question: TypeAlias = (
    prediction_pb2.PredictJobRequest | prediction_pb2.PredictPairsRequest | prediction_pb2.PredictMemoryRiskRequest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked; jobs name their graphs by hash.

    Attributes:
        graphs: Files of all graphs that are named.
        jobs: About single jobs.
        pairs: About slowdowns; None = nothing.
        risk: About the memory of jobs together; None = nothing.
    """

    graphs: Sequence[Path]
    jobs: Sequence[prediction_pb2.PredictJobRequest] = ()
    pairs: prediction_pb2.PredictPairsRequest | None = None
    risk: prediction_pb2.PredictMemoryRiskRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was answered, in the order of the questions."""

    jobs: list[prediction_pb2.PredictJobResponse] = field(default_factory=list)
    pairs: prediction_pb2.PredictPairsResponse | None = None
    risk: prediction_pb2.PredictMemoryRiskResponse | None = None


def add_calibration(request: Question, calibration: DeviceCalibration | None) -> None:
    """Adds what was measured of the device to a question; None = nothing was."""
    if calibration is not None:
        request.calibration.CopyFrom(calibration_message(calibration))


def load_graph(path: Path) -> bytes:
    """Returns an ONNX file without its weights.

    Raises:
        InputError: Not readable or not an ONNX file.
    """
    try:
        return read_graph(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy="check the path") from error
    except GraphFileError as error:
        raise InputError(str(error), remedy="export it with torch.onnx.export (docs/training_scripts.md)") from error


@contextmanager
def naming_graph(path: Path) -> Iterator[None]:
    """Lets a service that refuses a graph be told with the file's name; it was sent the bytes only."""
    try:
        yield
    except ServiceError as error:
        if error.reason in _REFUSALS_OF_GRAPHS:
            error.message = f"{path}: {error.message}"
        raise


def hash_of(path: Path) -> str:
    """Returns the hash under which a predictor keeps the graph of a file."""
    return graph_sha256(load_graph(path))


def ask_service(questions: Questions, client: PredictorClient) -> Answers:
    """Asks a running predictor.

    Raises:
        CotenantError: It cannot be reached, or refuses a graph or a question.
    """
    for path in questions.graphs:
        with naming_graph(path):
            client.upload_graph(load_graph(path))
    return Answers(
        jobs=[client.predict_job(request) for request in questions.jobs],
        pairs=client.predict_pairs(questions.pairs) if questions.pairs else None,
        risk=client.predict_memory_risk(questions.risk) if questions.risk else None,
    )


def ask_offline(questions: Questions, *, timeout_s: float = OFFLINE_TIMEOUT_S) -> Answers:
    """Starts the predictor's program for these questions only.

    Args:
        questions: All of them.
        timeout_s: How long it may take.

    Raises:
        InputError: It refuses a question; the message is its own. The reason of a graph that it lacks is NO_SUCH_GRAPH.
        ProgramError: It is not installed, wrote no answers, or took too long.
    """
    content: dict[str, Any] = {
        "graphs": [str(path.resolve()) for path in questions.graphs],
        "jobs": [MessageToDict(request) for request in questions.jobs],
    }
    content |= {
        name: MessageToDict(each) for name in ("pairs", "risk") if (each := getattr(questions, name)) is not None
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        done = run_captured("predict-many", [str(file)], timeout_s=timeout_s)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["it told nothing"])[-1].removeprefix("error: ")
        message, _, remedy = told.partition("; ")
        kind = InputError if done.returncode in (EXIT_USAGE, EXIT_NOT_FOUND) else ProgramError
        reason = NO_SUCH_GRAPH if done.returncode == EXIT_NOT_FOUND else ""
        raise kind(f"the offline predictor: {message}", remedy=remedy, reason=reason)
    return _read(done.stdout)


def _read(text: str) -> Answers:
    try:
        content = json.loads(text)
        return Answers(
            jobs=[_parse(each, prediction_pb2.PredictJobResponse()) for each in content["jobs"]],
            pairs=_parse(content["pairs"], prediction_pb2.PredictPairsResponse()) if "pairs" in content else None,
            risk=_parse(content["risk"], prediction_pb2.PredictMemoryRiskResponse()) if "risk" in content else None,
        )
    except (ParseError, ValueError, KeyError) as error:
        raise ProgramError(f"the offline predictor wrote no prediction: {error}") from error


def _parse(content: dict[str, Any], message: Answer) -> Answer:
    return ParseDict(content, message, ignore_unknown_fields=True)
