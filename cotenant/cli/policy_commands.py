"""policies: list, describe, use."""

from __future__ import annotations

import json
from itertools import compress

import click
from google.protobuf.json_format import ParseDict, ParseError

from cotenant.cli.formats import emit_message, message_to_dict
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.cli.tables import Column, Row, render_labelled, render_table
from cotenant.client_errors import InputError, ProgramError, UnavailableError
from cotenant.command_groups import ListedGroup
from cotenant.nearest_name import did_you_mean
from cotenant.programs import run_captured
from cotenant.v1 import scheduling_pb2

OFFLINE_TIMEOUT_S = 60.0
_NOT_OFFERED = "not offered: "
_COLUMNS = (Column(title=""), Column(title="POLICY"), Column(title="WHAT IT DOES", wraps=True))
_IN_USE = Column(title="IN USE", right=True)
_PARAMETER_COLUMNS = (
    Column(title="PARAMETER"),
    Column(title="TYPE"),
    Column(title="DEFAULT", right=True),
    _IN_USE,
    Column(title="MEANING", wraps=True),
)


@click.group(
    cls=ListedGroup,
    epilog="\b\nExamples:\n  cotenant policies list\n  cotenant policies use horus --set max_jobs_per_gpu=3",
)
def policies() -> None:
    """List, describe and choose scheduling policies."""


@policies.command(name="list")
@with_session
def list_policies(session: Session, /) -> None:
    """List the policies that the scheduler knows, else those installed here; * marks the one in use, or the default."""
    found, marked = _known_policies(session)
    if not session.output.is_for_people:
        names = [policy.name for policy in found]
        emit_message(scheduling_pb2.ListPoliciesResponse(policies=found), session.output, names=names)
        return
    rows = [Row(cells=("*" if policy.name == marked else " ", policy.name, policy.summary)) for policy in found]
    show(render_table(_COLUMNS, rows, session.width))


@policies.command(name="describe", epilog="Example:  cotenant policies describe sjf_bsbf")
@click.argument("policy")
@with_session
def describe_policy(session: Session, /, policy: str) -> None:
    """Show what POLICY does, where it comes from, and its parameters."""
    known = {found.name: found for found in _known_policies(session)[0]}
    if policy not in known:
        raise InputError(f"unknown policy {policy!r}", remedy=did_you_mean(policy, list(known)))
    found = known[policy]
    if not session.output.is_for_people:
        emit_message(found, session.output, names=[found.name])
        return
    lines = [("policy", found.name), ("does", found.summary), ("source", found.source), ("cost", found.cost)]
    show(render_labelled([line for line in lines if line[1]], session.width))
    if found.parameters:
        show("")
        cells = [(p.name, p.type, p.default_value, p.value_in_use, p.description) for p in found.parameters]
        # Only a scheduler says what is in use, and only of the policy that is.
        is_known = any(p.value_in_use for p in found.parameters)
        is_shown = [is_known or column is not _IN_USE for column in _PARAMETER_COLUMNS]
        rows = [Row(cells=tuple(compress(row, is_shown))) for row in cells]
        show(render_table(tuple(compress(_PARAMETER_COLUMNS, is_shown)), rows, session.width))


def _known_policies(session: Session) -> tuple[list[scheduling_pb2.Policy], str]:
    """Returns the scheduler's policies and the one in use; without a scheduler those installed here and the default."""
    try:
        found = session.scheduler().list_policies()
    except UnavailableError:
        tell(f"no scheduler at {session.settings.scheduler}: policies installed here, * = default of a new scheduler")
        return installed_policies()
    return found, next((policy.name for policy in found if policy.active), "")


def installed_policies() -> tuple[list[scheduling_pb2.Policy], str]:
    """Returns the policies that are installed here, and the default.

    Raises:
        ProgramError: They cannot be listed.
    """
    done = run_captured("policies", ["list", "-o", "json"], timeout_s=OFFLINE_TIMEOUT_S)
    try:
        rows = json.loads(done.stdout)
        found = [ParseDict(row, scheduling_pb2.Policy(), ignore_unknown_fields=True) for row in rows]
        for line in done.stderr.splitlines():
            if line.startswith(_NOT_OFFERED):
                tell(f"warning: {line}", style="yellow")
        return found, next((str(row["name"]) for row in rows if row["default"]), "")
    except (ValueError, KeyError, TypeError, ParseError) as error:
        reported = done.stderr.strip() or str(error)
        raise ProgramError(f"the policies installed here cannot be listed: {reported}") from error


@policies.command(name="use", epilog="Example:  cotenant policies use horus --dry-run")
@click.argument("policy")
@click.option(
    "--set",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter; VALUE is JSON. Those not named take their defaults.",
)
@click.option("--dry-run", is_flag=True, help="Check without changing anything.")
@with_session
def use_policy(session: Session, /, policy: str, parameters: tuple[str, ...], dry_run: bool) -> None:
    """Choose POLICY for the running cluster."""
    answer = session.scheduler().set_policy(policy, parse_parameters(parameters), validate_only=dry_run)
    if not session.output.is_for_people:
        emit_message(answer, session.output, names=[answer.policy])
        return
    effective = message_to_dict(answer).get("effective_parameters", {})
    lines = [("policy", answer.policy + (" (not changed: dry run)" if dry_run else ""))]
    lines += [(name, json.dumps(_whole(value))) for name, value in sorted(effective.items())]
    show(render_labelled(lines, session.width))


def _whole(value: object) -> object:
    """A Struct makes every number a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_parameters(pairs: tuple[str, ...]) -> dict[str, float | str | bool]:
    """Reads NAME=VALUE pairs; a value that is not JSON is text.

    Raises:
        InputError: Not of that form.
    """
    values: dict[str, float | str | bool] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not name or not separator:
            raise InputError(f"{pair!r} is not NAME=VALUE", remedy="e.g. --set max_jobs_per_gpu=3")
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError):  # no JSON, or more digits or brackets than can be read
            values[name] = text
    return values
