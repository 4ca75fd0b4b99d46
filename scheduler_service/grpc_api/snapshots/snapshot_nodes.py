"""The nodes of a snapshot, read once: what jobs hold comes on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, repeat
from operator import and_, lt

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.cluster_view.empty_cluster import EmptyCluster
from scheduler_service.core.cluster_view.inventory import kinds_of
from scheduler_service.core.cluster_view.listed_gpus import ListedGpus
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.copied_record import make_records
from scheduler_service.core.records import Gpu, Node
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns


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
        sharing: How the GPUs of a device type are shared, in one way or several.
    """

    usable: Mapping[str, Node]
    gpus: Mapping[str, Gpu]
    empty: EmptyCluster
    slowdown_ewma_ratios: Mapping[str, float]
    least_memory_bytes: Mapping[str, int]
    queues: Mapping[str, frozenset[str]]
    sharing: Mapping[str, frozenset[DeviceSharing]]


def describe_unusable(nodes: SnapshotNodes) -> str:
    """Return why no job can start at all; empty = at least one GPU is usable."""
    if nodes.empty.gpus:
        return ""
    if not nodes.gpus:
        return (
            "snapshot.nodes: states no GPU; each node names its own in gpus, with gpu_id, device, memory_bytes, healthy"
        )
    sick = sum(not gpu.healthy for gpu in nodes.gpus.values())
    return (
        f"snapshot.nodes: not one of {len(nodes.gpus):,} GPUs is usable: {len(nodes.usable):,} nodes say schedulable, "
        f"{sick:,} GPUs do not say healthy; both are false where a row does not set them"
    )


def read_nodes(nodes: RowColumns) -> SnapshotNodes:
    """Read valid rows, column by column: a cluster has thousands of them."""
    gpus = nodes.parts("gpus")  # in node and index order
    gpu_ids, memory_bytes, healthy = gpus["gpu_id"], gpus["memory_bytes"], gpus["healthy"]
    devices = _shared_names(gpus["device"])
    counts = [*map(len, nodes["gpus"])]
    sharing = _sharing({*zip(devices, gpus["sharing"], strict=True)})
    # Of a type that is shared in one way all pairs are those of its type: there is nothing to tell apart.
    ways = {"sharing": [*map(DeviceSharing, gpus["sharing"])]} if any(len(way) > 1 for way in sharing.values()) else {}
    made = make_records(
        Gpu,
        len(gpus),
        gpu_id=gpu_ids,
        device=devices,
        memory_bytes=memory_bytes,
        healthy=healthy,
        index=[*chain.from_iterable(map(range, counts))],
        **ways,
    )
    node_ids, schedulable = nodes["node_id"], nodes["schedulable"]
    of_node = [*chain.from_iterable(map(repeat, node_ids, counts))]
    takes_jobs = [*chain.from_iterable(map(repeat, schedulable, counts))]
    usable = dict(compress(zip(node_ids, _nodes(nodes, made, counts), strict=True), schedulable))
    are_open = [*map(and_, healthy, takes_jobs)]
    taken, open_ids, of_taken = ([*compress(column, are_open)] for column in (made, gpu_ids, of_node))
    views = make_records(GpuView, len(taken), gpu=taken, node_id=of_taken)
    empty = dict(zip(open_ids, views, strict=True))
    is_in_order = all(map(lt, node_ids, node_ids[1:]))
    columns = ListedGpus(taken, open_ids, of_taken, kinds_of(taken)) if is_in_order else None
    return SnapshotNodes(
        usable=usable,
        gpus=dict(zip(gpu_ids, made, strict=True)),
        empty=EmptyCluster(empty, usable, columns),
        slowdown_ewma_ratios={
            name: ratio for name, ratio in zip(gpu_ids, gpus["slowdown_ewma_ratio"], strict=True) if ratio
        },
        least_memory_bytes=_least_memory_bytes(set(zip(devices, memory_bytes, healthy, strict=True))),
        queues={name: frozenset(queues) for name, queues in zip(node_ids, nodes["queues"], strict=True) if queues},
        sharing=sharing,
    )


def _sharing(said: Iterable[tuple[str, int]]) -> Mapping[str, frozenset[DeviceSharing]]:
    ways = dict[str, set[DeviceSharing]]()
    for device, number in said:
        ways.setdefault(device, set()).add(DeviceSharing(number))
    return {device: frozenset(found) for device, found in ways.items()}


def _shared_names(names: Sequence[str]) -> Sequence[str]:
    """Return the same with one object per name: it is compared and looked up thousands of times."""
    if len(distinct := {*names}) == 1:
        return [*distinct] * len(names)
    shared = dict(zip(distinct, distinct, strict=True))
    return [*map(shared.__getitem__, names)]


def _nodes(rows: RowColumns, gpus: Sequence[Gpu], counts: Sequence[int]) -> Sequence[Node]:
    ends = [*accumulate(counts)]
    return make_records(
        Node,
        len(rows),
        node_id=rows["node_id"],
        rack_id=rows["rack_id"],
        cpu_cores=rows["cpu_cores"],
        host_memory_bytes=rows["host_memory_bytes"],
        schedulable=rows["schedulable"],
        gpus=[tuple(gpus[end - count : end]) for end, count in zip(ends, counts, strict=True)],
    )


def _least_memory_bytes(kinds: Iterable[tuple[str, int, bool]]) -> Mapping[str, int]:
    """Return the least memory by device type, among kinds of GPUs with whether they are healthy."""
    healthy: dict[str, int] = {}
    closed: dict[str, int] = {}
    for device, memory_bytes, is_healthy in kinds:
        least = healthy if is_healthy else closed
        least[device] = min(memory_bytes, least.get(device, memory_bytes))
    return closed | healthy
