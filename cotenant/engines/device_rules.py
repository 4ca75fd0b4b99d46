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
        nodes: Pattern of node names, with * and ?; with a slash, of NODE/TYPE as the engine calls a type of GPU.
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


def rule_of(node_id: str, rules: Iterable[DeviceRule], type_name: str = "") -> DeviceRule | None:
    """Return the first rule that fits a node, or one type of the GPUs that it has."""
    return next((rule for rule in rules if fnmatch.fnmatchcase(_named_by(rule, node_id, type_name), rule.nodes)), None)


def _named_by(rule: DeviceRule, node_id: str, type_name: str) -> str:
    return f"{node_id}/{type_name}" if "/" in rule.nodes else node_id
