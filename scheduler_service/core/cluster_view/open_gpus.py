"""Which usable GPUs have a place, kept from event to event: those that hold nothing, and those that hold one job."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.view import GpuView

FreePlaces = Mapping[Kind, Mapping[str, "list[tuple[int, str]]"]]
"""(index, id) of the free GPUs by kind and node, ascending; nodes without any are absent."""


class OpenGpus:
    """GPUs that release nothing and hold no job (free) or exactly one (lone).

    Attributes:
        free_ids: GPUs that hold nothing, in no order.
        single_job_ids: GPUs that hold exactly one job, in no order.
        free_places: The free ones by kind and node.
    """

    def __init__(self) -> None:
        self._free: dict[str, None] = {}
        self._single_job: dict[str, None] = {}
        self.free_ids: AbstractSet[str] = self._free.keys()
        self.single_job_ids: AbstractSet[str] = self._single_job.keys()
        self.free_places: dict[Kind, dict[str, list[tuple[int, str]]]] = {}

    def rebuild(self, entries: Iterable[GpuView]) -> None:
        """Start over with these GPUs."""
        for kept in (self._free, self._single_job, self.free_places):
            kept.clear()
        # GPUs of one node come one after the other.
        newest: tuple[str, Kind] | None = None
        places: list[tuple[int, str]] = []
        for entry in entries:
            if entry.is_releasing:
                continue
            gpu = entry.gpu
            if not entry.job_ids:
                self._free[gpu.gpu_id] = None
                of = (entry.node_id, kind_of(gpu))
                if of != newest:
                    newest = of
                    places = self.free_places.setdefault(of[1], {}).setdefault(entry.node_id, [])
                places.append((gpu.index, gpu.gpu_id))
            elif len(entry.job_ids) == 1:
                self._single_job[gpu.gpu_id] = None
        for by_node in self.free_places.values():
            for places in by_node.values():
                places.sort()

    def put(self, entry: GpuView) -> None:
        """Note what a usable GPU holds now."""
        gpu_id, jobs = entry.gpu.gpu_id, len(entry.job_ids)
        is_free = not jobs and not entry.is_releasing
        if is_free is not (gpu_id in self._free):
            self._change_free(entry, is_free=is_free)
        if jobs == 1 and not entry.is_releasing:
            self._single_job[gpu_id] = None
        else:
            self._single_job.pop(gpu_id, None)

    def _change_free(self, entry: GpuView, *, is_free: bool) -> None:
        kind, place = kind_of(entry.gpu), (entry.gpu.index, entry.gpu.gpu_id)
        by_node = self.free_places.setdefault(kind, {})
        if is_free:
            self._free[entry.gpu.gpu_id] = None
            insort(by_node.setdefault(entry.node_id, []), place)
            return
        del self._free[entry.gpu.gpu_id]
        here = by_node[entry.node_id]
        del here[bisect_left(here, place)]
        if not here:
            del by_node[entry.node_id]
