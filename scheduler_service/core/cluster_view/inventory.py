"""What a cluster has, free or not, by kind of GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    placed = [*entries]
    gpus = [entry.gpu for entry in placed]
    return count_listed(gpus, [*map(kind_of, gpus)], [entry.node_id for entry in placed])


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
