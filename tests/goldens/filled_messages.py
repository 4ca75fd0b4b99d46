"""Every message of the contract with every field set: what a reader of stored or sent bytes must go on to understand.

A golden of a message is a list of variants, since only one field of a oneof can be set at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cotenant.v1 import models_pb2, node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2

CONTRACT = (models_pb2, node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2)
DEPTH_MAX = 3
"""Messages inside messages that are filled; Struct holds itself."""
_INTEGERS = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
    }
)


def contract_messages() -> dict[str, Descriptor]:
    """Every message of the contract by its full name; entries of maps are no messages of their own."""
    found: dict[str, Descriptor] = {}
    for module in CONTRACT:
        for descriptor in module.DESCRIPTOR.message_types_by_name.values():
            found[descriptor.full_name] = descriptor
    return found


def message_class(descriptor: Descriptor) -> type[Message]:
    """The Python class of a message."""
    return GetMessageClass(descriptor)


def filled_variants(descriptor: Descriptor) -> list[Message]:
    """A message with every field set, once per field of its oneofs."""
    variants = [_filled(descriptor, 0, without=_in_choices(descriptor))]
    for field in _in_choices(descriptor):
        message = message_class(descriptor)()
        _fill(message, field, 0)
        variants.append(message)
    return variants


def encoded(message: Message) -> bytes:
    """The bytes of a message, the same for equal messages."""
    return message.SerializeToString(deterministic=True)


def _in_choices(descriptor: Descriptor) -> list[FieldDescriptor]:
    """Fields of which only one can be set; `optional` alone is no choice."""
    return [field for one in descriptor.oneofs if len(one.fields) > 1 for field in one.fields]


def _filled(descriptor: Descriptor, depth: int, without: list[FieldDescriptor]) -> Message:
    message = message_class(descriptor)()
    for field in descriptor.fields:
        if field not in without:
            _fill(message, field, depth)
    return message


def _fill(message: Message, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _fill_map(message, field, depth)
    elif field.is_repeated:
        values = getattr(message, field.name)
        for place in range(2):
            if field.message_type is None:
                values.append(_scalar(field, place))
            elif depth < DEPTH_MAX:
                values.add().CopyFrom(_nested(field.message_type, depth))
    elif field.message_type is not None:
        if depth < DEPTH_MAX:
            getattr(message, field.name).CopyFrom(_nested(field.message_type, depth))
    else:
        setattr(message, field.name, _scalar(field, 0))


def _nested(descriptor: Descriptor, depth: int) -> Message:
    """A message inside another one, with the first field of each oneof."""
    choices = _in_choices(descriptor)
    first = {one.fields[0].name for one in descriptor.oneofs}
    return _filled(descriptor, depth + 1, without=[field for field in choices if field.name not in first])


def _fill_map(message: Message, field: FieldDescriptor, depth: int) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    values = getattr(message, field.name)
    name = _scalar(key, 0)
    if value.message_type is None:
        values[name] = _scalar(value, 0)
    elif depth < DEPTH_MAX:
        values[name].CopyFrom(_nested(value.message_type, depth))


def _scalar(field: FieldDescriptor, place: int) -> Any:
    number = field.number + 100 * place
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.type in _INTEGERS:
        return number
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type == FieldDescriptor.TYPE_BYTES:
        return f"bytes {number}".encode()
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"text {number}"
    return number / 8


def variants_by_name() -> Iterator[tuple[str, list[Message]]]:
    """Every message of the contract with its variants, by name."""
    for name, descriptor in sorted(contract_messages().items()):
        yield name, filled_variants(descriptor)
