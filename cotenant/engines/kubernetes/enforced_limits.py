"""Limits of GPU memory that the driver enforces, as kai-gpu-fractioning reads them: we say the number and the GPU.

A pod that states such a limit for one of its containers gets what was reserved for it as request and limit, and its GPU
as the device; the operator's plugin on the node gives both to the container, and the driver ends allocations beyond.
Other schedulers (KAI) write the same annotations: what their pods hold counts. Read off the project's documents and
never run: it needs driver r615.

Source: github.com/kai-scheduler/kai-gpu-fractioning, README and `fractiond/internal/annotations`; KAI-Scheduler,
its pages on sharing GPUs (NvFractions) and what its binder writes (CDI's names of devices, where these are in use).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from cotenant.engines.kubernetes.values import Row, quantity_of, row_of, text_of

_PREFIX: Final = "nvidia.com/container."
_REQUEST: Final = ".gpu-memory.request"
_LIMIT: Final = ".gpu-memory.limit"
_DEVICES: Final = ".gpus.devices"
# A container's name is a DNS label.
_STATED: Final = re.compile(
    r"nvidia\.com/container\.([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)\.gpu-memory\.(?:request|limit)"
)
_DEVICES_MAX: Final = 64
_MIB: Final = 2**20


def is_limit(annotation: str) -> bool:
    """Say whether an annotation belongs to a limit."""
    return annotation.startswith(_PREFIX)


def stated_bytes(pod: Row) -> int:
    """Return the memory that a pod states for the one container that has a limit; 0 = none or several have one."""
    container, annotations = _container_of(pod), _annotations(pod)
    return int(quantity_of(annotations.get(_named(container, _REQUEST)) or annotations.get(_named(container, _LIMIT))))


def obstacle_of(pod: Row) -> str:
    """Say why limits of a pod cannot be written; empty = they can, or it has none."""
    names = _containers_of(pod)
    if len(names) > 1:
        return f"limits of GPU memory for several containers ({', '.join(sorted(names)[:3])})"
    return "a limit of GPU memory that is no amount" if names and stated_bytes(pod) < _MIB else ""


def limits_of(pod: Row, uuid: str, memory_bytes: int) -> dict[str, str | None]:
    """Return what is to be written into a pod that has a limit; nothing for any other.

    Args:
        pod: Not bound to a node.
        uuid: Of its GPU.
        memory_bytes: Reserved for it; 0 = the whole GPU, then its limit stays what it states.
    """
    container = _container_of(pod)
    if not container:
        return {}
    found: dict[str, str | None] = {_named(container, _DEVICES): uuid}
    if memory_bytes:
        amount = f"{math.ceil(memory_bytes / _MIB)}Mi"
        found |= {_named(container, _REQUEST): amount, _named(container, _LIMIT): amount}
    return found


def taken_back(pod: Row) -> dict[str, str | None]:
    """Return what takes back the GPU of a pod that has a limit; the limit stays, as a pod without one is not shared."""
    container = _container_of(pod)
    return {_named(container, _DEVICES): None} if container else {}


def allocated_parts(pod: Row, node_id: str, parts_by_gpu: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return which GPUs a scheduler gave to a pod with a limit and how many parts of each; empty = it does not say.

    Args:
        pod: Bound to a node.
        node_id: Which node.
        parts_by_gpu: Of each GPU of the node the parts in which it is counted, and its memory in bytes.
    """
    container, annotations = _container_of(pod), _annotations(pod)
    # It may take all of its limit, although it is scheduled by its request.
    stated = int(quantity_of(annotations.get(_named(container, _LIMIT)))) or stated_bytes(pod)
    found: dict[str, int] = {}
    # A name of CDI is VENDOR/CLASS=DEVICE.
    for gpu_id in (f"{node_id}/{name.strip().rpartition('=')[2]}" for name in _devices_of(pod)):
        if gpu_id in parts_by_gpu and stated:
            parts, memory_bytes = parts_by_gpu[gpu_id]
            found[gpu_id] = min(max(math.ceil(parts * stated / max(memory_bytes, 1)), 1), parts)
    return found


def has_devices(pod: Row) -> bool:
    """Say whether a scheduler gave GPUs to a pod with a limit, whatever it calls them."""
    return any(name.strip() for name in _devices_of(pod))


def _devices_of(pod: Row) -> list[str]:
    return text_of(_annotations(pod), _named(_container_of(pod), _DEVICES)).split(",")[:_DEVICES_MAX]


def _annotations(pod: Row) -> Row:
    return row_of(pod, "metadata", "annotations")


def _containers_of(pod: Row) -> set[str]:
    matches = (_STATED.fullmatch(name) for name in _annotations(pod) if isinstance(name, str))
    return {match[1] for match in matches if match is not None}


def _container_of(pod: Row) -> str:
    names = _containers_of(pod)
    return names.pop() if len(names) == 1 else ""


def _named(container: str, suffix: str) -> str:
    return f"{_PREFIX}{container}{suffix}"
