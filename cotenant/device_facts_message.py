"""What a driver says of a GPU as the frozen record and as the contract's message; their fields are called alike."""

from __future__ import annotations

from dataclasses import asdict, fields

from cotenant.device_facts import DeviceFacts
from cotenant.v1 import resources_pb2


def facts_message(facts: DeviceFacts | None) -> resources_pb2.DeviceFacts | None:
    """Return the message that states a record; None = there is none."""
    return None if facts is None else resources_pb2.DeviceFacts(**asdict(facts))


def read_facts_message(message: resources_pb2.DeviceFacts) -> DeviceFacts | None:
    """Return the record that a message states; None where a number is missing or cannot be."""
    facts = DeviceFacts(**{field.name: getattr(message, field.name) for field in fields(DeviceFacts)})
    return facts if facts.is_possible else None
