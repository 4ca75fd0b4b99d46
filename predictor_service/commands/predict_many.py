"""predict-many: several questions of one client at once, without a server: jobs, their slowdowns, their memory."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from cotenant.structured_log import start_logging
from cotenant.v1 import prediction_pb2
from predictor_service.commands.predict import naming_file, open_predictor, read_graph_file
from predictor_service.commands.train import ensure_version
from predictor_service.errors import invalid_field
from predictor_service.grpc_api.translate_answers import job_response, pairs_response, risk_response
from predictor_service.grpc_api.translate_requests import job_question, pairs_question, risk_question
from predictor_service.inference.predictor import Predictor
from predictor_service.settings import SETTINGS, Settings

_PATH: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("predict-many")
@click.argument("questions", type=_PATH)
@SETTINGS.options("state_dir")
def predict_many_command(questions: Path, settings: Settings) -> None:
    """Answer the requests in QUESTIONS, a JSON file of graphs (paths), jobs, pairs and risk, as JSON."""
    start_logging("predictor", "error")
    ensure_version(settings, lambda line: click.echo(line, err=True))
    try:
        content = json.loads(questions.read_text(encoding="utf-8"))
        with TemporaryDirectory(prefix="cotenant-graphs-") as graphs_dir:
            answers = _answer(open_predictor(settings.state_dir, Path(graphs_dir)), content)
    except (ParseError, ValueError) as error:
        raise invalid_field("questions", str(error), "write requests as protos/cotenant/v1 has them") from error
    click.echo(json.dumps(answers))


def _answer(predictor: Predictor, content: dict[str, Any]) -> dict[str, Any]:
    for path in content["graphs"]:
        graph = read_graph_file(Path(path))
        with naming_file(Path(path)):
            predictor.keep_graph(graph)
    jobs = [ParseDict(job, prediction_pb2.PredictJobRequest()) for job in content["jobs"]]
    answers: dict[str, Any] = {
        "jobs": [_as_data(job_response(predictor.predict_job(job_question(job)))) for job in jobs]
    }
    if "pairs" in content:
        pairs = ParseDict(content["pairs"], prediction_pb2.PredictPairsRequest())
        answers["pairs"] = _as_data(pairs_response(predictor.predict_pairs(pairs_question(pairs))))
    if "risk" in content:
        risk = ParseDict(content["risk"], prediction_pb2.PredictMemoryRiskRequest())
        answers["risk"] = _as_data(risk_response(predictor.predict_memory_risk(risk_question(risk))))
    return answers


def _as_data(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
