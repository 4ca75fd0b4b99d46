"""Beside HAMi, which shares GPUs by limits that it enforces: we choose the GPU, by its annotation.

A pod that our gate holds and that asks for HAMi's memory gets the uuid of its GPU and is let go; HAMi's scheduler
allocates, accounts and enforces. Read off HAMi's documents and never run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from cotenant.engines.kubernetes.values import Row, row_of, text_of

MEMORY_RESOURCE: Final = "nvidia.com/gpumem"
"""In MiB: beyond it allocations fail."""
PERCENTAGE_RESOURCE: Final = "nvidia.com/gpumem-percentage"
RESOURCES: Final = frozenset({MEMORY_RESOURCE, PERCENTAGE_RESOURCE, "nvidia.com/gpucores", "nvidia.com/priority"})
"""What HAMi counts itself: no node has any of it."""
UUID_ANNOTATION: Final = "nvidia.com/use-gpuuuid"
ALLOCATED_ANNOTATION: Final = "hami.io/vgpu-devices-allocated"
_MIB: Final = 2**20
_DEVICES_MAX: Final = 64
_DIGITS_MAX: Final = 9


def memory_bytes_of(requests: Mapping[str, float]) -> int:
    """Return the memory to which HAMi limits a pod; 0 = it is none of HAMi's, or does not state an amount."""
    return int(requests.get(MEMORY_RESOURCE, 0.0)) * _MIB


def obstacle_of(requests: Mapping[str, float]) -> str:
    """Say why a pod that our gate holds without a claim is placed nowhere; empty = HAMi can limit it."""
    if memory_bytes_of(requests):
        return ""
    if PERCENTAGE_RESOURCE in requests:
        return f"{PERCENTAGE_RESOURCE}; ask for {MEMORY_RESOURCE}, an amount that does not depend on the GPU"
    return f"our gate and neither a claim of their own nor {MEMORY_RESOURCE}"


def allocated_parts(pod: Row, node_id: str, parts_by_gpu: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return which GPUs HAMi gave to a pod and how many parts of each; empty = it does not say.

    Args:
        pod: Bound to a node.
        node_id: Which node.
        parts_by_gpu: Of each GPU of the node the parts in which it is counted, and its memory in bytes.
    """
    text = text_of(row_of(pod, "metadata", "annotations"), ALLOCATED_ANNOTATION)
    found: dict[str, int] = {}
    for entry in text.replace(";", ":").split(":")[:_DEVICES_MAX]:
        uuid, _, rest = entry.strip().partition(",")
        memory = rest.split(",")[1:2]
        gpu_id = f"{node_id}/{uuid}"
        if gpu_id in parts_by_gpu and memory and memory[0].isdecimal() and len(memory[0]) <= _DIGITS_MAX:
            parts, memory_bytes = parts_by_gpu[gpu_id]
            taken = math.ceil(parts * int(memory[0]) * _MIB / max(memory_bytes, 1))
            found[gpu_id] = min(found.get(gpu_id, 0) + max(taken, 1), parts)
    return found
