"""What jobs of workers and parameter servers occupy of nodes, one server next to every worker.

A job that states no demands is one worker per GPU with its share of the job's CPU and host memory, and no servers.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 6.1: DRF and
    Tetris with as many parameter servers as workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import Assignment, JobRequest, Node

Amounts = NDArray[np.float64]
"""GPUs, CPU cores, host memory in bytes."""


def pair_demand(request: JobRequest) -> Amounts:
    """Return what one worker and its server occupy; a worker holds one GPU, as everywhere here."""
    worker, server = request.worker_demand, request.server_demand
    if worker is None:
        return np.array([1.0, request.cpu_cores / request.gpus, request.host_memory_bytes / request.gpus])
    cpu_cores, host_memory_bytes = worker.cpu_cores, float(worker.host_memory_bytes)
    if server is not None:
        cpu_cores, host_memory_bytes = cpu_cores + server.cpu_cores, host_memory_bytes + server.host_memory_bytes
    return np.array([1.0, cpu_cores, host_memory_bytes])


def capacity_of(node: Node, gpus: int) -> Amounts:
    """Return what a node has; one that states no CPU or memory has any amount."""
    return np.array([float(gpus), node.cpu_cores or inf, node.host_memory_bytes or inf])


ROUNDING_DIGITS = 9
"""Of sums of shares: equal nodes tie whatever the order of the sum."""


class TaskRoom:
    """What is left on every node while a round places jobs.

    Args:
        view: The cluster; what running jobs occupy is taken away.

    Attributes:
        capacity: Of every node.
        left: Of every node, now.
    """

    def __init__(self, view: SchedulingView) -> None:
        self._view = view
        gpus: dict[str, int] = {}
        for entry in view.gpus.values():
            gpus[entry.node_id] = gpus.get(entry.node_id, 0) + 1
        self.capacity = {node_id: capacity_of(node, gpus.get(node_id, 0)) for node_id, node in view.nodes.items()}
        self.left = {node_id: amounts.copy() for node_id, amounts in self.capacity.items()}
        for job in view.running.values():
            self.take(job.request, job.assignments)

    def take(self, request: JobRequest, assignments: Sequence[Assignment]) -> None:
        """Occupy what a job needs where it is."""
        demand = pair_demand(request)
        for part in assignments:
            entry = self._view.gpus.get(part.gpu_id)
            if entry is not None:
                self.left[entry.node_id] -= demand

    def fits(self, request: JobRequest, node_id: str, gpus_here: int) -> bool:
        """Return whether CPU and memory of a node suffice for so many workers and servers."""
        need = pair_demand(request) * gpus_here
        return bool((need[1:] <= np.maximum(self.left[node_id][1:], 0.0) + 1e-9).all())

    def leftover(self, request: JobRequest, node_id: str, gpus_here: int) -> float:
        """Return how much of a node would be left, as the sum of its resources' shares; what is unlimited counts 0."""
        capacity = self.capacity[node_id]
        is_limited = np.isfinite(capacity) & (capacity > 0)
        after = self.left[node_id] - pair_demand(request) * gpus_here
        return round(float((after[is_limited] / capacity[is_limited]).sum()), ROUNDING_DIGITS)

    def choose_emptiest(
        self, ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...] | None:
        """Return free GPUs for a job, worker by worker on the node that has most of them left; None = none."""
        nodes_max = ledger.view.nodes_per_job_max
        widest = sorted(by_node, key=lambda node_id: (-len(by_node[node_id]), node_id))
        groups = [[node_id] for node_id in widest] if nodes_max == 1 else [widest[: nodes_max or None]]
        found = (self._spread(ledger, request, {node_id: by_node[node_id] for node_id in group}) for group in groups)
        return next((gpu_ids for gpu_ids in found if gpu_ids is not None), None)

    def choose_least_leftover(
        self, ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...] | None:
        """Return free GPUs of the node of which least is left then, else of as few nodes as the view allows."""
        gpus = request.gpus
        enough = [
            (self.leftover(request, node_id, gpus), node_id)
            for node_id, ids in by_node.items()
            if len(ids) >= gpus and self._has_room(ledger, request, node_id, gpus)
        ]
        if enough:
            return tuple(by_node[min(enough)[1]][:gpus])
        return self.choose_emptiest(ledger, request, by_node) if ledger.view.nodes_per_job_max != 1 else None

    def _spread(
        self, ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...] | None:
        chosen: dict[str, int] = dict.fromkeys(by_node, 0)
        for _ in range(request.gpus):
            open_nodes = [
                (chosen[node_id] - len(ids), node_id)
                for node_id, ids in by_node.items()
                if chosen[node_id] < len(ids) and self._has_room(ledger, request, node_id, chosen[node_id] + 1)
            ]
            if not open_nodes:
                return None
            chosen[min(open_nodes)[1]] += 1
        return tuple(gpu_id for node_id, count in chosen.items() for gpu_id in by_node[node_id][:count])

    def _has_room(self, ledger: Ledger, request: JobRequest, node_id: str, gpus_here: int) -> bool:
        node = ledger.view.nodes[node_id]
        return self.fits(request, node_id, gpus_here) and ledger.host_fits(
            node, request, gpus_here=gpus_here, gpus=request.gpus
        )
