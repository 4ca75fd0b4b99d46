"""What a cluster has, free or not, by kind of GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final, Protocol

from cotenant.device_calibration import DeviceCalibration
from scheduler_service.core.records import Gpu, Node

Kind = tuple[str, int, *tuple[str, ...]]
"""Device type and memory in bytes, of a slice its id too: the GPUs of one job are of one kind.

A slice of a GPU (MIG) is a kind by itself, since CUDA gives a process one slice at most: no job gets two.
"""
SLICE_PREFIX: Final = "MIG-"
"""Of the ids that drivers give slices of a GPU."""
_PROFILE: Final = re.compile(r"(?:^|[^a-z0-9.])(?:\dc\.)?\dg\.\d+gb", re.IGNORECASE)
"""As in NVIDIA A100-SXM4-40GB MIG 1g.5gb: ids of other engines say nothing of slices."""


_WHOLE_KIND: Final = attrgetter("device", "memory_bytes")


class PlacedGpu(Protocol):
    """A GPU and where it is."""

    @property
    def gpu(self) -> Gpu:
        """The GPU."""

    @property
    def node_id(self) -> str:
        """Its node."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a cluster has, free or not.

    Attributes:
        gpus: One GPU of every kind, by kind.
        count: GPUs by kind.
        most_on_node: GPUs on the node that has most of them, by kind.
    """

    gpus: Mapping[Kind, Gpu]
    count: Mapping[Kind, int]
    most_on_node: Mapping[Kind, int]


def slices_counted(inventory: Inventory) -> Mapping[str, float]:
    """Return what a reason says of slices where GPUs of one kind are too few; empty = there are none."""
    slices = sum(map(is_slice, inventory.gpus.values()))
    return {"slices_count": slices} if slices else {}


def newest_calibration(nodes: Iterable[Node], device: str) -> DeviceCalibration | None:
    """Return the newest record of a device type, which stands for all its devices; None = none was measured."""
    found = [
        gpu.calibration
        for node in nodes
        for gpu in node.gpus
        if gpu.device == device and gpu.calibration is not None and gpu.calibration.device == device
    ]
    return max(found, key=lambda calibration: (not calibration.foreign_load, calibration.measured_at_ms), default=None)


def kind_of(gpu: Gpu) -> Kind:
    """Return the kind of a GPU, found once: it is asked for hundreds of times in every round."""
    return _kind(gpu.gpu_id, gpu.device, gpu.memory_bytes)


@lru_cache(maxsize=65_536)
def _kind(gpu_id: str, device: str, memory_bytes: int) -> Kind:
    return (device, memory_bytes, gpu_id) if _is_slice(gpu_id, device) else (device, memory_bytes)


def is_slice(gpu: Gpu) -> bool:
    """Say whether it is a part of a GPU with memory of its own, by its id or by its device type."""
    return _is_slice(gpu.gpu_id, gpu.device)


def _is_slice(gpu_id: str, device: str) -> bool:
    return gpu_id.startswith(SLICE_PREFIX) or _names_slice(device)


@lru_cache(maxsize=4_096)
def _names_slice(device: str) -> bool:
    return _PROFILE.search(device) is not None


def alike_for_one(gpu: Gpu) -> Kind:
    """Return what GPUs have in common to a job that wants one: all slices of one type and size are alike to it."""
    return (gpu.device, gpu.memory_bytes, SLICE_PREFIX) if is_slice(gpu) else kind_of(gpu)


def may_replace(gpu: Gpu, other: Gpu) -> bool:
    """Say whether a job on one GPU may go on on another one: also from slice to slice of one type and size."""
    return alike_for_one(gpu) == alike_for_one(other)


def kinds_of(gpus: Sequence[Gpu]) -> Sequence[Kind]:
    """Return the kind of each; of many GPUs, nearly never slices, quicker than one by one."""
    devices = {gpu.device for gpu in gpus}
    has_slices = any(map(_names_slice, devices)) or any(gpu.gpu_id.startswith(SLICE_PREFIX) for gpu in gpus)
    return [*map(kind_of if has_slices else _WHOLE_KIND, gpus)]


def count_gpus(entries: Iterable[PlacedGpu]) -> Inventory:
    """Count GPUs by kind; kinds come in the order of their names."""
    placed = [*entries]
    gpus = [entry.gpu for entry in placed]
    return count_listed(gpus, kinds_of(gpus), [entry.node_id for entry in placed])


def count_listed(gpus: Sequence[Gpu], kinds: Sequence[Kind], node_ids: Sequence[str]) -> Inventory:
    """Count GPUs of which kind and node are known already.

    Args:
        gpus: The GPUs.
        kinds: The kind of each.
        node_ids: The node of each.
    """
    firsts = dict(zip(reversed(kinds), reversed(gpus), strict=True))
    nodes_of: dict[Kind, list[str]] = {kind: [] for kind in dict.fromkeys(kinds)}
    if len(firsts) > 1:
        for kind, node_id in zip(kinds, node_ids, strict=True):
            nodes_of[kind].append(node_id)
    else:  # as nearly everywhere
        nodes_of = {kind: [*node_ids] for kind in firsts}
    return Inventory(
        gpus=dict(sorted(firsts.items())),
        count={kind: len(of_kind) for kind, of_kind in nodes_of.items()},
        most_on_node={kind: max(Counter(of_kind).values()) for kind, of_kind in nodes_of.items()},
    )
