"""What the GPUs of some nodes are, where the engine does not say it: `gpu*=NVIDIA A10:24GiB`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from cotenant.errors import InputError
from cotenant.quantities import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRule:
    """What the GPUs of some nodes are.

    Attributes:
        nodes: Pattern of node names, with * and ?.
        device: Type as people name it.
    """

    nodes: str
    device: str
    memory_bytes: int


def read_device_rule(text: str) -> DeviceRule:
    """Read NODES=DEVICE:MEMORY.

    Raises:
        InputError: Not of that form.
    """
    nodes, _, about = text.partition("=")
    device, _, memory = about.rpartition(":")
    if not (nodes and device and memory):
        raise InputError(f"--gpu {text!r} is not NODES=DEVICE:MEMORY", remedy="write it like 'gpu*=NVIDIA A10:24GiB'")
    return DeviceRule(nodes=nodes, device=device, memory_bytes=parse_bytes(memory))


def rule_of(node_id: str, rules: Iterable[DeviceRule]) -> DeviceRule | None:
    """Return the first rule that fits a node."""
    return next((rule for rule in rules if fnmatch.fnmatchcase(node_id, rule.nodes)), None)
