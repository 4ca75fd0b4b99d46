"""decide: the policies on a snapshot file, without a running scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TextIO

import click
from google.protobuf import json_format
from google.protobuf.message import Message
from rich.text import Text

from cotenant.addresses import split_address
from cotenant.cli.session import output_width, show
from cotenant.cli.tables import Column, Row, render_table
from cotenant.default_policy import DEFAULT_POLICY
from cotenant.option_types import Texts
from cotenant.tls_settings import check_client_tls
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.commands.predictor_link import predictor_channel, probe_predictor
from scheduler_service.errors import FieldViolation, InvalidRequestError
from scheduler_service.grpc_api.snapshots.decide import DEFAULT_DEADLINE_S
from scheduler_service.grpc_api.snapshots.decide import decide as decide_on
from scheduler_service.settings import SETTINGS, Settings

_EXAMPLES = {"parameters": '{"max_jobs_per_gpu": 3}', "snapshot": "what examples/snapshot.json holds"}
"""By field, for what is no JSON object."""
_JOB, _POLICY = Column(title="JOB"), Column(title="POLICY")
_REST = (Column(title="DECISION"), Column(title="GPUS", wraps=True), Column(title="REASON", wraps=True))


@click.command(epilog="Example:  cotenant decide examples/snapshot.json --policy horus")
@click.argument("snapshot", type=click.File("r"))
@click.option("--policy", default=DEFAULT_POLICY, show_default=True)
@click.option("--parameters", default="{}", help="JSON object of the policy's parameters.")
@click.option("--predictor", default="", metavar="HOST:PORT", help="Asked for predictions that the snapshot lacks.")
@click.option("--compare", type=Texts(), default="", help="Further policies to decide on the same snapshot, 8 at most.")
@click.option("--explain", is_flag=True, help="Add the candidate table to every decision.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@SETTINGS.options("tls_ca_file", "tls_certificate_file", "tls_key_file")
def decide(
    *,
    snapshot: TextIO,
    policy: str,
    parameters: str,
    predictor: str,
    compare: tuple[str, ...],
    explain: bool,
    output: str,
    settings: Settings,
) -> None:
    """Decide on the file SNAPSHOT (proto3 JSON of a Snapshot; - = stdin)."""
    if predictor:
        if not predictor.startswith("unix:"):
            split_address(predictor)
        check_client_tls(settings)
    compared = [name for name in dict.fromkeys(compare) if name != policy]
    request = scheduling_pb2.DecideRequest(policy=policy, explain=explain, compared_policies=compared)
    request.snapshot.SetInParent()  # "{}" is a snapshot, too
    _parse("parameters", parameters, request.parameters)
    try:
        _parse("snapshot", snapshot.read(), request.snapshot)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(FieldViolation(field="snapshot", description=f"must be UTF-8: {error}")) from error
    answer = asyncio.run(_decide(request, dataclasses.replace(settings, predictor=predictor)))
    for warning in answer.warnings:
        click.echo(f"warning: {warning.code}: {warning.message}", err=True)
    if output == "json":
        click.echo(json.dumps(json_format.MessageToDict(answer, preserving_proto_field_name=True), indent=2))
        return
    if not answer.decisions:
        click.echo("no job waits in this snapshot", err=True)
        return
    show(decision_table(policy, answer, output_width()))


def _parse(field: str, text: str, message: Message) -> None:
    if not text.lstrip().startswith("{"):
        description = f"must be a JSON object, not {text.strip()[:20]!r}; write for instance {_EXAMPLES[field]}"
        raise InvalidRequestError(FieldViolation(field=field, description=description))
    try:
        json_format.Parse(text, message)
    except json_format.ParseError as error:
        raise InvalidRequestError(FieldViolation(field=field, description=f"must be proto3 JSON: {error}")) from error


async def _decide(request: scheduling_pb2.DecideRequest, settings: Settings) -> scheduling_pb2.DecideResponse:
    channel = predictor_channel(settings)
    if channel is None:
        return await decide_on(request, predictor=None, seconds_left=None)
    predictor = PredictorClient(channel, deadline_s=DEFAULT_DEADLINE_S, look=lambda: probe_predictor(settings))
    try:
        return await decide_on(request, predictor=predictor, seconds_left=None)
    finally:
        await predictor.close()


def decision_table(policy: str, answer: scheduling_pb2.DecideResponse, width: int) -> Text:
    """Lay an answer out, job by job, so that the policies stand below each other.

    Args:
        policy: The one that was asked for; the compared ones say their names.
        answer: With one list of decisions per policy.
        width: Columns of the terminal.
    """
    if not answer.comparisons:
        return render_table((_JOB, *_REST), [_row(decision, "") for decision in answer.decisions], width)
    lists = [(policy, answer.decisions), *((one.policy, one.decisions) for one in answer.comparisons)]
    decided = [(decision, name) for name, decisions in lists for decision in decisions]
    places = {job_id: place for place, job_id in enumerate(dict.fromkeys(decision.job_id for decision, _ in decided))}
    decided.sort(key=lambda pair: places[pair[0].job_id])
    return render_table((_JOB, _POLICY, *_REST), [_row(decision, name) for decision, name in decided], width)


def _row(decision: scheduling_pb2.Decision, policy: str) -> Row:
    action = decision.WhichOneof("action") or ""
    taken = getattr(getattr(decision, action), "assignments", ()) if action else ()
    cells = [action, ",".join(assignment.gpu_id for assignment in taken), decision.reason.message]
    note = "; ".join(_candidate_text(candidate) for candidate in decision.candidates)
    return Row(cells=[decision.job_id, *([policy] if policy else []), *cells], note=note)


def _candidate_text(candidate: scheduling_pb2.Candidate) -> str:
    verdict = "chosen" if candidate.chosen else "possible" if candidate.feasible else "no"
    cost = f", cost {candidate.cost:.4g}" if candidate.HasField("cost") else ""
    reason = candidate.reason.message.rstrip(".") or candidate.reason.code
    return f"{candidate.gpu_id}: {verdict}{cost}{', ' if reason else ''}{reason}"
