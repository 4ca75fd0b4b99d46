"""Every kind of event with every field set, whatever the engine would say of it: the stored form, not the story."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import count
from typing import Any, Union, get_args, get_origin, get_type_hints

from google.protobuf.json_format import MessageToDict

from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import unchecked_settings
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.codec import EVENT_KINDS
from scheduler_service.core.events import Event
from tests.goldens.filled_messages import filled_variants

_SPEC_FIELDS = frozenset({"launch"})
_SETTINGS_FIELDS = frozenset({"settings"})


def filled_events() -> list[Event]:
    """One event of every kind."""
    return [filled(kind) for _, kind in sorted(EVENT_KINDS.items())]


def filled(kind: Any) -> Any:
    """A value of an annotated type that differs from every default."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: _field_value(field.name, hints[field.name]) for field in fields(kind)})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return filled(next(one for one in arguments if one is not types.NoneType))
    if origin is tuple:
        inner = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return tuple(filled(one) for one in inner)
    if origin is not None and issubclass(origin, Mapping):
        return {filled(arguments[0]): filled(arguments[1])}
    return _plain(kind)


def _field_value(name: str, hint: Any) -> Any:
    """Free-form fields hold what their writers put there: proto3 JSON of the contract's messages."""
    if name in _SPEC_FIELDS:
        return as_json(scheduling_pb2.JobSpec)
    if name in _SETTINGS_FIELDS:
        return filled_settings()
    return filled(hint)


def told_apart(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored record with another number or text in every place, so that no two can be taken for each other."""
    numbers = count(11)

    def told(value: Any, name: str = "") -> Any:
        if isinstance(value, dict) and name not in _SPEC_FIELDS | _SETTINGS_FIELDS:
            return {key: told(item, key) for key, item in sorted(value.items())}
        if isinstance(value, list):
            return [told(item) for item in value]
        if type(value) is int:
            return next(numbers)
        if isinstance(value, float):
            return next(numbers) + 0.5
        return f"text {next(numbers)}" if value == "text" else value

    found: dict[str, Any] = told(stored)
    return found


def filled_settings() -> JobSettings:
    """Settings of which every one is set that the stored version had."""
    message = filled_variants(resources_pb2.JobSettings.DESCRIPTOR)[0]
    settings = unchecked_settings(message)  # type: ignore[arg-type]
    later: Any = {
        "channels_last": False,
        "activation_checkpointing": False,
        "ddp_bucket_bytes": None,
        "input_wait_ms": 0.0,
        "sharded_ranks": 0,
        "gathered_ratio": 0.0,
    }
    return replace(settings, **later)


def as_json(message: Any) -> dict[str, Any]:
    """A message with every field set, as it is stored: JSON with the contract's own names."""
    return MessageToDict(filled_variants(message.DESCRIPTOR)[0], preserving_proto_field_name=True)


def _plain(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1]
    values: dict[Any, Any] = {bool: True, int: 7, float: 0.625, str: "text", object: {"list": [1, 0.5, None, True]}}
    return values[kind]
