"""Calls that nobody sensible makes: random messages of the right shape, the same with wrong bytes, and bytes alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

# Whatever is asked: more is no answer but a flood.
ANSWER_BYTES_MAX = 8 * 2**20
MESSAGES_READ_MAX = 20
_DEADLINE_S = 90.0
_STREAM_DEADLINE_S = 0.3
_DEPTH_MAX = 5
_INTEGERS = (0, 1, 2, 7, 100, 10**6, 2**31 - 1)
_TEXTS = ("", "job-1", "job-2", "n1", "g0", "fifo", "horus", "a" * 300, "../../etc", "\0", "\u202e", "x=y;z", "{}", "é")
_NUMBERS = (0.0, 1.0, 0.5, -1.0, 1e308, float("nan"), float("inf"), -0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one call ended."""

    method: str
    code: grpc.StatusCode
    details: str
    answer_bytes: int


def methods_of(services: Sequence[ServiceDescriptor]) -> list[MethodDescriptor]:
    """Every method of these services."""
    return [method for service in services for method in service.methods]


def random_message(kind: Descriptor, drawn: random.Random, depth: int = 0) -> Message:
    """A message of this kind with about half of its fields."""
    message: Message = GetMessageClass(kind)()
    for field in kind.fields:
        if drawn.random() < 0.5 and depth < _DEPTH_MAX:
            _fill(message, field, drawn, depth)
    return message


def _fill(message: Any, field: FieldDescriptor, drawn: random.Random, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        if value.message_type is None:
            getattr(message, field.name)[_scalar(key, drawn)] = _scalar(value, drawn)
        else:
            getattr(message, field.name)[_scalar(key, drawn)].MergeFrom(
                random_message(value.message_type, drawn, depth + 1)
            )
    elif field.is_repeated:
        for _ in range(drawn.choice((1, 1, 2, 5))):
            if field.message_type is not None:
                getattr(message, field.name).add().MergeFrom(random_message(field.message_type, drawn, depth + 1))
            else:
                getattr(message, field.name).append(_scalar(field, drawn))
    elif field.message_type is not None:
        getattr(message, field.name).MergeFrom(random_message(field.message_type, drawn, depth + 1))
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(field, drawn))


def _scalar(field: FieldDescriptor, drawn: random.Random) -> Any:
    if field.enum_type is not None:
        return drawn.choice([*field.enum_type.values_by_number, 99])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return drawn.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        number = drawn.choice(_NUMBERS)
        return number if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE or abs(number) < 1e30 else 0.0
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = drawn.choice(_TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    integer = drawn.choice(_INTEGERS)
    is_signed = field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    return -integer if is_signed and drawn.random() < 0.2 else integer


def random_content(kind: Descriptor, drawn: random.Random) -> bytes:
    """The bytes of one request: mostly of the right shape, sometimes spoilt, sometimes drawn byte by byte."""
    way = drawn.random()
    content = random_message(kind, drawn).SerializeToString() if way < 0.85 else drawn.randbytes(drawn.randrange(200))
    if 0.6 < way < 0.85 and content:
        spoilt = bytearray(content)
        for _ in range(drawn.randrange(1, 4)):
            spoilt[drawn.randrange(len(spoilt))] ^= drawn.randrange(1, 256)
        content = bytes(spoilt[: drawn.randrange(1, len(spoilt) + 1)])
    return content


def call(channel: grpc.Channel, method: MethodDescriptor, contents: Sequence[bytes]) -> Outcome:
    """Make one call with these requests, and read its answers up to a bound."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    request: Any = iter(contents) if method.client_streaming else contents[0]
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    timeout_s = _STREAM_DEADLINE_S if method.server_streaming else _DEADLINE_S
    size_bytes, code, details = 0, grpc.StatusCode.OK, ""
    try:
        made: Any = kinds[method.client_streaming, method.server_streaming](path)
        answered = made(request, timeout=timeout_s)
        for number, answer in enumerate(answered if method.server_streaming else [answered], start=1):
            size_bytes += len(answer)
            if number == MESSAGES_READ_MAX:
                answered.cancel()
                break
    except grpc.RpcError as error:
        failed: Any = error
        code, details = failed.code(), failed.details() or ""
    return Outcome(method=method.name, code=code, details=details, answer_bytes=size_bytes)


def fuzz(channel: grpc.Channel, methods: Sequence[MethodDescriptor], *, calls: int, seed: int) -> Iterator[Outcome]:
    """Make so many calls of methods drawn at random."""
    drawn = random.Random(seed)
    for _ in range(calls):
        method = drawn.choice(methods)
        count = drawn.choice((1, 1, 3)) if method.client_streaming else 1
        yield call(channel, method, [random_content(method.input_type, drawn) for _ in range(count)])
