"""What a cluster has, free or not, by kind of GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cotenant.device_calibration import DeviceCalibration
from scheduler_service.core.records import Gpu, Node

Kind = tuple[str, int]
"""Device type and memory in bytes: the GPUs of one job are of one kind."""


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
    """Return the kind of a GPU."""
    return gpu.device, gpu.memory_bytes


def count_gpus(entries: Iterable[PlacedGpu]) -> Inventory:
    """Count GPUs by kind; kinds come in the order of their names."""
    gpus: dict[Kind, Gpu] = {}
    on_node: dict[tuple[str, int, str], int] = {}
    for entry in entries:
        gpu = entry.gpu
        place = (gpu.device, gpu.memory_bytes, entry.node_id)
        if place in on_node:
            on_node[place] += 1
        else:
            on_node[place] = 1
            gpus.setdefault(place[:2], gpu)
    count, most_on_node = dict.fromkeys(gpus, 0), dict.fromkeys(gpus, 0)
    for (device, memory_bytes, _), here in on_node.items():
        kind = device, memory_bytes
        count[kind] += here
        most_on_node[kind] = max(most_on_node[kind], here)
    return Inventory(gpus=dict(sorted(gpus.items())), count=count, most_on_node=most_on_node)
