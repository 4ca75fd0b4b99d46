"""The nodes of a snapshot, read once: what jobs hold comes on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.empty_cluster import EmptyCluster
from scheduler_service.core.records import Gpu, Node
from scheduler_service.core.view import GpuView


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotNodes:
    """What a cluster has; it is read, never changed.

    Attributes:
        usable: The nodes that take jobs, by id.
        gpus: All GPUs by id, those of closed nodes and unhealthy ones too.
        empty: The usable nodes with their healthy GPUs as if they held nothing.
        slowdown_ewma_ratios: As in the view.
        least_memory_bytes: The least memory of each device type, of its healthy GPUs where it has any.
        queues: The queues that a node serves, by id; absent = all.
    """

    usable: Mapping[str, Node]
    gpus: Mapping[str, Gpu]
    empty: EmptyCluster
    slowdown_ewma_ratios: Mapping[str, float]
    least_memory_bytes: Mapping[str, int]
    queues: Mapping[str, frozenset[str]]


def read_nodes(messages: Iterable[scheduling_pb2.SnapshotNode]) -> SnapshotNodes:
    """Read valid rows."""
    reading = _Reading()
    for message in messages:
        reading.add(message)
    return SnapshotNodes(
        usable=reading.usable,
        gpus=reading.gpus,
        empty=EmptyCluster(reading.empty_gpus, reading.usable),
        slowdown_ewma_ratios=reading.slowdown_ewma_ratios,
        least_memory_bytes=reading.closed_memory_bytes | reading.healthy_memory_bytes,
        queues=reading.queues,
    )


class _Reading:
    """What was read so far."""

    def __init__(self) -> None:
        self.usable: dict[str, Node] = {}
        self.gpus: dict[str, Gpu] = {}
        self.empty_gpus: dict[str, GpuView] = {}
        self.slowdown_ewma_ratios: dict[str, float] = {}
        self.healthy_memory_bytes: dict[str, int] = {}
        self.closed_memory_bytes: dict[str, int] = {}
        self.queues: dict[str, frozenset[str]] = {}
        self._devices: dict[str, str] = {}

    def add(self, message: scheduling_pb2.SnapshotNode) -> None:
        """Read a node."""
        node_id, schedulable = message.node_id, message.schedulable
        gpus = tuple(self._gpu(index, gpu) for index, gpu in enumerate(message.gpus))
        node = Node(
            node_id=node_id,
            rack_id=message.rack_id,
            cpu_cores=message.cpu_cores,
            host_memory_bytes=message.host_memory_bytes,
            schedulable=schedulable,
            gpus=gpus,
        )
        if message.queues:
            self.queues[node_id] = frozenset(message.queues)
        for gpu in gpus:
            self.gpus[gpu.gpu_id] = gpu
        if schedulable:
            self.usable[node_id] = node
            for gpu in gpus:
                if gpu.healthy:
                    self.empty_gpus[gpu.gpu_id] = GpuView(gpu=gpu, node_id=node_id)

    def _gpu(self, index: int, message: scheduling_pb2.SnapshotGpu) -> Gpu:
        gpu_id, memory_bytes, healthy = message.gpu_id, message.memory_bytes, message.healthy
        # One object per name: it is compared and looked up thousands of times.
        device = self._devices.setdefault(message.device, message.device)
        ewma_ratio = message.slowdown_ewma_ratio
        if ewma_ratio:
            self.slowdown_ewma_ratios[gpu_id] = ewma_ratio
        least = self.healthy_memory_bytes if healthy else self.closed_memory_bytes
        if memory_bytes < least.get(device, memory_bytes + 1):
            least[device] = memory_bytes
        return Gpu(gpu_id=gpu_id, device=device, memory_bytes=memory_bytes, healthy=healthy, index=index)
