"""policies: what can be chosen, read without a running scheduler."""

from __future__ import annotations

import json

import click
from google.protobuf import json_format

from cotenant.command_groups import ListedGroup
from cotenant.default_policy import DEFAULT_POLICY
from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import FieldViolation, UnknownPolicyError
from scheduler_service.grpc_api.policies import policy_messages
from scheduler_service.policy_registry import unusable_plugins

_OUTPUT = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)


@click.group(cls=ListedGroup)
def policies() -> None:
    """List or describe the policies."""


@policies.command("list")
@_OUTPUT
def list_policies(output: str) -> None:
    """List all policies; on stderr also the plug-ins that cannot be chosen."""
    for plugin in unusable_plugins():
        click.echo(f"not offered: {plugin.name} of {plugin.package}: {plugin.fault}", err=True)
    found = list(policy_messages(active=""))
    if output == "json":
        click.echo(json.dumps([_to_json(policy) for policy in found], indent=2))
        return
    for policy in found:
        click.echo(f"{'*' if policy.name == DEFAULT_POLICY else ' '} {policy.name:<18} {policy.summary}")
    click.echo("* = policy of a new scheduler", err=True)


@policies.command(epilog="Example:  cotenant policies describe sjf_bsbf")
@click.argument("name")
@_OUTPUT
def describe(name: str, output: str) -> None:
    """Describe one policy with its parameters."""
    found = {policy.name: policy for policy in policy_messages(active="")}
    if name not in found:
        description = f"there is no policy {name!r}; valid names are {', '.join(found)}"
        raise UnknownPolicyError(FieldViolation(field="policy", description=description))
    policy = found[name]
    if output == "json":
        click.echo(json.dumps(_to_json(policy), indent=2))
        return
    click.echo(f"{policy.name}: {policy.summary}\n\nSource: {policy.source}\nCost: {policy.cost}\n")
    for parameter in policy.parameters:
        click.echo(f"  {parameter.name} ({parameter.type}, {parameter.default_value})  {parameter.description}")


def _to_json(policy: scheduling_pb2.Policy) -> dict[str, object]:
    described = json_format.MessageToDict(
        policy, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {**described, "default": policy.name == DEFAULT_POLICY}
