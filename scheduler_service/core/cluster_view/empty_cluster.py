"""What follows from the nodes of a cluster alone, whatever runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, build_empty_arrays
from scheduler_service.core.cluster_view.inventory import Inventory, count_gpus, count_listed
from scheduler_service.core.cluster_view.listed_gpus import ListedGpus, list_gpus
from scheduler_service.core.cluster_view.view import GpuView, SchedulingView
from scheduler_service.core.records import Node


class EmptyCluster:
    """A cluster that holds nothing; each part is found when it is first read, and no reader changes it.

    Many views are of few clusters: what they hold comes on top of what is known here.

    Args:
        gpus: Healthy GPUs of the nodes as they are when they hold nothing, by id, in node and index order.
        nodes: The nodes by id.
        columns: The same GPUs, where they are known so; None = they are not.
    """

    def __init__(
        self, gpus: Mapping[str, GpuView], nodes: Mapping[str, Node], columns: ListedGpus | None = None
    ) -> None:
        self.gpus, self.nodes, self._columns = gpus, nodes, columns

    def is_of(self, view: SchedulingView) -> bool:
        """Say whether a view is of all these GPUs; one of this very mapping of nodes has no others."""
        return view.nodes is self.nodes and len(view.gpus) == len(self.gpus)

    def occupied_in(self, view: SchedulingView) -> Sequence[GpuView]:
        """Return the GPUs of such a view that are not as they are here."""
        return [
            entry for entry, empty in zip(view.gpus.values(), self.gpus.values(), strict=True) if entry is not empty
        ]

    @cached_property
    def inventory(self) -> Inventory:
        """What the GPUs are."""
        columns = self._columns
        if columns is None:
            return count_gpus(self.gpus.values())
        return count_listed(columns.gpus, columns.kinds, columns.node_ids)

    @cached_property
    def arrays(self) -> GpuArrays:
        """The GPUs as arrays."""
        return build_empty_arrays(self._columns or list_gpus(self.gpus.values()), self.nodes)
