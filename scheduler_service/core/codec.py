# ruff: noqa: ANN401 - values of every annotated type pass through here
"""Turns events and other frozen records into JSON-able values and back, exactly and strictly.

The types are the schema: a field that is not of its annotated type is refused; an unknown field, kind or name is taken
for a newer version's; a field that an older version did not write takes its default. Mappings with other keys than text
become lists of pairs; numbers that JSON cannot write (NaN, infinities) become the words of the proto3 JSON mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from cotenant.job_settings import JobSettings, JobSettingsError, read_stored_settings, stored_settings
from scheduler_service.core import events, fit_events, memory_events, policy_events, queue_events
from scheduler_service.core.errors import CodecError, UnsupportedVersionError

FORMAT_VERSION = 1
"""Raised when a reader of the version before could misread what is written."""

_FORGOTTEN_FIELDS = {"Gpu": frozenset({"slowdown_ewma_ratio"}), "JobRecord": frozenset({"memory_bytes"})}
"""What older versions wrote and no version reads any more, by record."""
_STORED_NAMES: Mapping[str, Mapping[str, str]] = {
    "StoredState": {"abandoned_attempts": "ghosts"},
    "JobRequest": {"global_batch_size": "batch"},
    "KeyUse": {"global_batch_size": "batch"},
    "AttemptShape": {"micro_batch_size": "sub_batch"},
    "GrantedCheckpoints": {"fences": "granted_fences", "node_ids": "granted_node_ids", "parts": "granted_parts"},
    "PairPrediction": {"micro_batch_size": "sub_batch"},
}
"""Under which key a field is stored whose name has changed since, by record and field."""
_FLAT_PARTS: Mapping[str, tuple[str, ...]] = {
    "JobRecord": ("submission", "times", "shape", "measured", "counts", "exit", "granted", "moves", "reported"),
    "Target": ("shape",),
}
"""Fields whose record is stored as fields of the record around it: what was one wide record is still stored as one."""

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_CONTAINERS_OF_EVENTS = (
    events.Event,
    events.AttemptReport,
    events.PartReport,
    events.PreparationReport,
    events.CommandGiven,
)

EVENT_KINDS: Mapping[str, type[events.Event]] = {
    name: value
    for module in (events, fit_events, memory_events, policy_events, queue_events)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, events.Event) and value not in _CONTAINERS_OF_EVENTS
}
"""Every event by its kind, which is the name of its class."""


def encode_event(event: events.Event) -> dict[str, Any]:
    """Return an event as JSON-able values with its kind and format version."""
    body: dict[str, Any] = encode(type(event), event)
    if not event.is_followed:  # as most are not, and as older versions know them
        del body["is_followed"]
    return {"kind": type(event).__name__, "format": FORMAT_VERSION, **body}


def decode_event(data: Mapping[str, Any]) -> events.Event:
    """Return the event that `encode_event` wrote.

    Raises:
        UnsupportedVersionError: It was written by a newer version.
        CodecError: It is no event of this format; the message names the field.
    """
    rest = dict(data)
    kind, version = rest.pop("kind", None), rest.pop("format", None)
    check_version(version)
    event_type = EVENT_KINDS.get(kind) if isinstance(kind, str) else None
    if event_type is None:
        raise UnsupportedVersionError(f"unknown kind of event {kind!r}; known are {', '.join(sorted(EVENT_KINDS))}")
    event: events.Event = decode(event_type, rest)
    return event


def check_version(version: object) -> None:
    """Refuse data of another format.

    Raises:
        UnsupportedVersionError: It was written by a newer version.
        CodecError: It states no version.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CodecError(f"format version {version!r} is not a positive integer")
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"format version {version} is newer than {FORMAT_VERSION}, the newest known here; upgrade the program"
        )


def encode(kind: Any, value: Any) -> Any:
    """Return a value of an annotated type as JSON-able values."""
    return _codec(kind)[0](value)


def decode(kind: Any, data: Any) -> Any:
    """Return the value of an annotated type that `encode` wrote.

    Raises:
        CodecError: The data do not fit the type.
    """
    return _codec(kind)[1](data)


@cache
def _codec(kind: Any) -> tuple[Encoder, Decoder]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is JobSettings:
        return stored_settings, _decode_settings
    if is_dataclass(kind):
        return _record_codec(kind)
    if origin in (Union, UnionType):
        return _optional_codec(arguments)
    if origin is tuple:
        return _tuple_codec(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_codec(*arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return (lambda value: value.value), lambda data: _decode_enum(kind, data)
    if kind is float:
        return _encode_float, _decode_float
    if kind is object or kind is Any:
        return _encode_json, _encode_json
    return (lambda value: value), lambda data: _decode_plain(kind, data)


def _dataclass_codec(kind: Any) -> tuple[Encoder, Decoder]:
    hints = get_type_hints(kind)
    stored = _stored_names(kind)
    named = {key: name for name, key in stored.items()}
    codecs = {stored[field.name]: _codec(hints[field.name]) for field in fields(kind)}
    forgotten = _FORGOTTEN_FIELDS.get(kind.__name__, frozenset())
    known = codecs.keys() | forgotten
    required = {
        stored[field.name] for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    }

    def encode_fields(value: Any) -> dict[str, Any]:
        return {key: encode_field(getattr(value, named[key])) for key, (encode_field, _) in codecs.items()}

    def decode_fields(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise CodecError(f"{kind.__name__}: expected an object, found {type(data).__name__}")
        if unknown := sorted(data.keys() - known):
            raise UnsupportedVersionError(f"{kind.__name__}: unknown {', '.join(unknown)}")
        if missing := sorted(required - data.keys()):
            raise CodecError(f"{kind.__name__}: missing {', '.join(missing)}")
        try:
            return kind(**{named[key]: codecs[key][1](item) for key, item in data.items() if key in codecs})
        except CodecError as error:
            raise type(error)(f"{kind.__name__}: {error}") from error

    return encode_fields, decode_fields


def _record_codec(kind: Any) -> tuple[Encoder, Decoder]:
    """Store a record with its flat parts among its own fields."""
    encode_nested, decode_nested = _dataclass_codec(kind)
    if kind.__name__ not in _FLAT_PARTS:
        return encode_nested, decode_nested
    hints = get_type_hints(kind)
    keys = {part: _stored_names(hints[part]).values() for part in _FLAT_PARTS[kind.__name__]}

    def encode_flat(value: Any) -> dict[str, Any]:
        body: dict[str, Any] = encode_nested(value)
        for part in keys:
            body |= body.pop(part)
        return body

    def decode_flat(data: Any) -> Any:
        if not isinstance(data, Mapping):
            return decode_nested(data)  # which refuses it by name
        rest = dict(data)
        if nested := sorted(rest.keys() & keys.keys()):
            raise UnsupportedVersionError(f"{kind.__name__}: unknown {', '.join(nested)}")
        parts = {part: {key: rest.pop(key) for key in names if key in rest} for part, names in keys.items()}
        return decode_nested(rest | parts)

    return encode_flat, decode_flat


def _stored_names(kind: Any) -> dict[str, str]:
    """Return the key under which each field of a record is stored."""
    renamed = _STORED_NAMES.get(kind.__name__, {})
    return {field.name: renamed.get(field.name, field.name) for field in fields(kind)}


def _decode_settings(data: Any) -> JobSettings | None:
    """Read settings; versions before 0.2 wrote an empty object where a user had said nothing."""
    try:
        return read_stored_settings(_an_object(data)) if data else None
    except JobSettingsError as error:
        raise CodecError(f"JobSettings: {error}") from error


def _optional_codec(arguments: tuple[Any, ...]) -> tuple[Encoder, Decoder]:
    inner = [argument for argument in arguments if argument is not NoneType]
    if len(inner) != 1 or len(arguments) != 2:
        raise TypeError(f"only X | None can be stored, not {arguments}")
    encode_inner, decode_inner = _codec(inner[0])
    return (
        lambda value: None if value is None else encode_inner(value),
        lambda data: None if data is None else decode_inner(data),
    )


def _tuple_codec(arguments: tuple[Any, ...]) -> tuple[Encoder, Decoder]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        encode_item, decode_item = _codec(arguments[0])
        return (
            lambda value: [encode_item(item) for item in value],
            lambda data: tuple([decode_item(item) for item in _a_list(data)]),
        )
    codecs = [_codec(argument) for argument in arguments]

    def decode_items(data: Any) -> tuple[Any, ...]:
        if len(_a_list(data)) != len(codecs):
            raise CodecError(f"expected {len(codecs)} items, found {len(data)}")
        return tuple(decode_item(item) for (_, decode_item), item in zip(codecs, data, strict=True))

    return (
        lambda value: [encode_item(item) for (encode_item, _), item in zip(codecs, value, strict=True)],
        decode_items,
    )


def _mapping_codec(key: Any, item: Any) -> tuple[Encoder, Decoder]:
    encode_item, decode_item = _codec(item)
    if key is str:
        return (
            lambda value: {_decode_plain(str, name): encode_item(entry) for name, entry in value.items()},
            lambda data: {_decode_plain(str, name): decode_item(entry) for name, entry in _an_object(data).items()},
        )
    encode_key, decode_key = _codec(key)

    def decode_pairs(data: Any) -> dict[Any, Any]:
        pairs = [_a_list(pair) for pair in _a_list(data)]
        if any(len(pair) != 2 for pair in pairs):
            raise CodecError("expected a list of pairs")
        return {decode_key(pair[0]): decode_item(pair[1]) for pair in pairs}

    return (lambda value: [[encode_key(name), encode_item(entry)] for name, entry in value.items()]), decode_pairs


def _a_list(data: Any) -> Any:
    if not isinstance(data, list | tuple):
        raise CodecError(f"expected a list, found {type(data).__name__}")
    return data


def _an_object(data: Any) -> Mapping[Any, Any]:
    if not isinstance(data, Mapping):
        raise CodecError(f"expected an object, found {type(data).__name__}")
    return data


def _decode_enum(kind: type[Enum], data: Any) -> Enum:
    try:
        return kind(data)
    except ValueError as error:
        raise UnsupportedVersionError(f"{data!r} is no {kind.__name__}") from error


def _decode_plain(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise CodecError(f"expected {kind.__name__}, found {data!r}")
    return data


def _encode_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _decode_float(data: Any) -> float:
    if isinstance(data, str) and data in _WORDS:
        return _WORDS[data]
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise CodecError(f"expected a number, found {data!r}")
    return float(data)


def _encode_json(value: Any) -> Any:
    """Pass JSON through, copied, so that what is stored cannot be changed."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {_decode_plain(str, name): _encode_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode_json(item) for item in value]
    raise CodecError(f"{type(value).__name__} is not a JSON value")
