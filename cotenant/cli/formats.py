"""Machine-readable output: proto3 JSON with the protos' own field names, YAML of the same, names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import click
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


class OutputFormat(StrEnum):
    """What -o accepts."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def is_for_people(self) -> bool:
        """Tells whether a table is wanted."""
        return self in (OutputFormat.TABLE, OutputFormat.WIDE)


def message_to_dict(message: Message) -> dict[str, Any]:
    """Returns proto3 JSON: snake_case names, int64 as strings, every field without presence printed."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def emit_data(data: object, output: OutputFormat) -> None:
    """Writes plain data to stdout as JSON or YAML."""
    if output is OutputFormat.YAML:
        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def emit_message(message: Message, output: OutputFormat, *, names: Sequence[str] = ()) -> None:
    """Writes a message to stdout as JSON, YAML or as the names in it."""
    if output is OutputFormat.NAME:
        for name in names:
            click.echo(name)
        return
    emit_data(message_to_dict(message), output)
