"""The GPUs of a cluster column by column, in node and index order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter, ge

from scheduler_service.core.cluster_view.inventory import Kind, kinds_of
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.records import Gpu

_NODE_ID, _PLACE_IN_NODE = attrgetter("node_id"), attrgetter("gpu.index", "gpu.gpu_id")
_GPU_ID = attrgetter("gpu_id")


@dataclass(frozen=True, slots=True)
class ListedGpus:
    """What they are, whatever they hold.

    Attributes:
        gpus: The GPUs.
        gpu_ids: Their ids.
        node_ids: The node of each.
        kinds: The kind of each.
    """

    gpus: Sequence[Gpu]
    gpu_ids: list[str]
    node_ids: Sequence[str]
    kinds: Sequence[Kind]


def list_gpus(entries: Iterable[GpuView]) -> ListedGpus:
    """Return the columns of GPUs that come in any order."""
    in_order = _in_order(entries)
    gpus = [entry.gpu for entry in in_order]
    return ListedGpus(gpus, [*map(_GPU_ID, gpus)], [*map(_NODE_ID, in_order)], kinds_of(gpus))


def _in_order(entries: Iterable[GpuView]) -> list[GpuView]:
    """Return GPUs by node, index and id; those of one node mostly come in this order already."""
    by_node: dict[str, list[GpuView]] = {}
    for node_id, run in groupby(entries, _NODE_ID):
        by_node.setdefault(node_id, []).extend(run)
    for here in by_node.values():
        indices = [entry.gpu.index for entry in here]
        if any(map(ge, indices, indices[1:])):
            here.sort(key=_PLACE_IN_NODE)
    return [*chain.from_iterable(by_node[node_id] for node_id in sorted(by_node))]
