"""What a driver says of a GPU between the frozen record and the contract's message."""

from __future__ import annotations

from cotenant.device_facts import DeviceFacts
from cotenant.v1 import resources_pb2


def facts_message(facts: DeviceFacts | None) -> resources_pb2.DeviceFacts | None:
    """Return the message that states a record; None = there is none."""
    if facts is None:
        return None
    return resources_pb2.DeviceFacts(
        cores=facts.cores,
        clock_mhz=facts.clock_mhz,
        memory_bus_bits=facts.memory_bus_bits,
        memory_clock_mhz=facts.memory_clock_mhz,
        compute_capability=facts.compute_capability,
    )


def read_facts_message(message: resources_pb2.DeviceFacts) -> DeviceFacts | None:
    """Return the record that a message states; None where a number is missing or cannot be."""
    facts = DeviceFacts(
        cores=message.cores,
        clock_mhz=message.clock_mhz,
        memory_bus_bits=message.memory_bus_bits,
        memory_clock_mhz=message.memory_clock_mhz,
        compute_capability=message.compute_capability,
    )
    return facts if facts.is_possible else None
