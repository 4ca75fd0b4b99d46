"""The cheapest GPUs for a job, found in columns: one expression over all of them instead of a look at each.

Source:
    Horus (Yeung et al.), Algorithm 1 line 16 and section 4.2.3 (one node, then one rack, before cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, Positions
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import JobRequest

Costs = NDArray[np.float64]
"""By position; infinite = the GPU cannot take the job."""


class CheapestGpus:
    """Finds GPUs of one kind; ties go to the first node and index.

    Args:
        view: For the limit of nodes.
        columns: The GPUs; their owner keeps them up to date.
        locality_gpus: Jobs of so many GPUs look for one node, then one rack, first.
    """

    def __init__(self, view: SchedulingView, columns: GpuArrays, *, locality_gpus: int) -> None:
        self._nodes_max = view.nodes_per_job_max
        self._columns = columns
        self._locality_gpus = locality_gpus
        self._firsts: dict[int, int] = {}
        """Of load classes that lose GPUs only: none lies before."""
        self._gpus_of_kinds = np.bincount(columns.kind_of).tolist()
        self._kinds = len(self._gpus_of_kinds)
        self._is_even = columns.slots.size == len(columns.gpu_ids)
        """Every node has the same number of GPUs, so that costs by position are a table by node."""
        self._ones = np.ones(columns.slots.shape[1], dtype=np.float32)
        """To count with: a product adds short rows up in a third of the time of a sum."""
        self._racks = int(columns.rack_of.max(initial=-1)) + 1

    def costs(self, request: JobRequest, class_costs: Costs) -> Costs:
        """Return what each GPU costs a job, by what its load class costs; hosts without room cost everything."""
        columns = self._columns
        costs: Costs = class_costs.take(columns.class_of)
        room = columns.hosts_with_room(request, 1)
        return costs if room is None else np.where(room[columns.node_of], costs, inf)

    def first_of_class(self, request: JobRequest, number: int) -> int | None:
        """Return the first GPU of a load class whose host has room for a job; None = there is none.

        Args:
            request: The job.
            number: Of the class; no GPU joins it while this round goes on.
        """
        class_of, room = self._columns.class_of, self._columns.hosts_with_room(request, 1)
        if room is not None:
            found = np.flatnonzero((class_of == number) & room[self._columns.node_of])
            return int(found[0]) if len(found) else None
        self._firsts[number] = first = self._columns.first_of_class(number, self._firsts.get(number, 0))
        return first if first < len(class_of) else None

    def are_of_each_kind(self, positions: Sequence[int]) -> bool:
        """Say whether some GPUs are of all kinds that there are, and there is one."""
        kind_of = self._columns.kind_of
        return len({int(kind_of[position]) for position in positions}) == self._kinds > 0

    def choose(self, request: JobRequest, costs: Costs) -> tuple[int, ...] | None:
        """Return the positions of the cheapest GPUs inside the smallest group that locality asks for; None = none."""
        if request.gpus == 1:
            best = int(costs.argmin()) if len(costs) else 0
            return (best,) if len(costs) and costs[best] < inf else None
        if np.count_nonzero(costs < inf) < request.gpus:
            return None
        for level in self._levels(request, costs):
            found = [one for one in level if one is not None]
            if found:
                cheapest = min(found, key=partial(_order, costs)) if len(found) > 1 else found[0]
                return tuple(cheapest.tolist())
        return None

    def most_on_one_node(self, costs: Costs) -> int:
        """Return how many GPUs of one kind some node offers."""
        nodes = len(self._columns.node_ids)
        return max(
            (
                int(np.bincount(self._columns.node_of[np.isfinite(part)], minlength=nodes).max(initial=0))
                for part in self._by_kind(costs, 1)
            ),
            default=0,
        )

    def _levels(self, request: JobRequest, costs: Costs) -> Iterator[list[Positions | None]]:
        """Yield what is found on one node, in one rack, anywhere (4.2.3)."""
        is_local = request.gpus >= self._locality_gpus
        if is_local or self._nodes_max == 1:
            yield [self._on_one_node(request, part) for part in self._by_kind(costs, request.gpus)]
        if self._nodes_max == 1:
            return
        if is_local:
            rack_of = self._columns.rack_of[self._columns.node_of]
            racks = [np.where(rack_of == rack, costs, inf) for rack in range(self._racks)]
            yield [self._together(request, part) for in_rack in racks for part in self._by_kind(in_rack, request.gpus)]
        yield [self._together(request, part) for part in self._by_kind(costs, request.gpus)]

    def _by_kind(self, costs: Costs, gpus: int) -> Iterator[Costs]:
        """Yield the costs of each kind of which there are so many: every slice of a GPU is a kind by itself."""
        for kind in [kind for kind, count in enumerate(self._gpus_of_kinds) if count >= gpus]:
            yield costs if self._kinds == 1 else np.where(self._columns.kind_of == kind, costs, inf)

    def _on_one_node(self, request: JobRequest, costs: Costs) -> Positions | None:
        """Return the GPUs of the node whose cheapest ones cost least together."""
        gpus, slots = request.gpus, self._columns.slots
        if slots.shape[1] < gpus:
            return None
        by_node = costs.reshape(slots.shape) if self._is_even else np.append(costs, inf)[slots]
        # Of a cluster that fills up few nodes have so many GPUs that take the job: only their costs are sorted.
        is_able = (by_node < inf).astype(np.float32) @ self._ones >= gpus
        room = self._columns.hosts_with_room(request, gpus)
        able = np.flatnonzero(is_able if room is None else is_able & room)
        if not len(able):
            return None
        cheapest = np.sort(by_node[able], axis=1)[:, :gpus]
        sums = cheapest.sum(axis=1)
        tied = np.flatnonzero(sums == sums.min())
        for column in range(gpus if len(tied) > 1 else 0):
            tied = tied[cheapest[tied, column] == cheapest[tied, column].min()]
        row = slots[able[tied[0]]]
        row = row[row >= 0]
        chosen: Positions = row[np.argsort(costs[row], kind="stable")[:gpus]]
        return chosen

    def _together(self, request: JobRequest, costs: Costs) -> Positions | None:
        """Return the cheapest GPUs wherever they are, if limits of nodes and hosts admit them together."""
        gpus = request.gpus
        if np.isfinite(costs).sum() < gpus:
            return None
        limit = np.partition(costs, gpus - 1)[gpus - 1]
        below, tied = np.flatnonzero(costs < limit), np.flatnonzero(costs == limit)
        chosen = np.concatenate((below, tied[: gpus - len(below)]))
        nodes, counts = np.unique(self._columns.node_of[chosen], return_counts=True)
        if self._nodes_max and len(nodes) > self._nodes_max:
            return None
        for node, count in zip(nodes, counts, strict=True):
            room = self._columns.hosts_with_room(request, int(count))
            if room is not None and not room[node]:
                return None
        return chosen[np.argsort(costs[chosen], kind="stable")]


def _order(costs: Costs, chosen: Positions) -> tuple[float, list[tuple[float, int]]]:
    """Cheapest together first, then the cheapest one by one, then the first positions."""
    parts = [(float(costs[position]), int(position)) for position in chosen]
    return sum(cost for cost, _ in parts), parts
