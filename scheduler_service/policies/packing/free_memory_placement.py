"""One round of packing by free memory alone on GPUs of one kind, by load class instead of GPU by GPU.

Equal decisions to `OjppPacking` under `FREE_MEMORY_RULES`, which looks at every GPU for every shape of job, shows how
each GPU looks, and serves GPUs of several kinds and limits of nodes. What a class says of a shape of job is kept from
decision to decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.capacity import (
    Resident,
    expected_bytes,
    opportunistic,
    resident_on,
    samples_per_gpu,
)
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, LoadClass, Positions
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import GpuView, PendingJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Decision, Start
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from scheduler_service.policies.packing import ojpp_packing
from scheduler_service.policies.packing.free_memory_prices import is_open, prices_of
from scheduler_service.policies.packing.packing_orders import by_arrival
from scheduler_service.policies.packing.packing_rules import FREE_MEMORY_RULES
from scheduler_service.policies.placement import length_queue
from scheduler_service.policies.placement.class_prices import AlikeGpus
from scheduler_service.policies.placement.reasons import (
    full_reason,
    host_reason,
    impossible_reason,
    nearest_obstacle,
)
from scheduler_service.policies.placement.sharing_round import SharingRound
from scheduler_service.policies.placement.starts import start_on

_BY_NAME: Final = "free memory: positions in the order of the ids of GPUs"


def pack_by_free_memory(view: SchedulingView) -> list[Decision]:
    """Return one decision per pending job, jobs being placed in the order of submission."""
    if not view.pending:
        return []
    is_large = len(view.gpus) >= ojpp_packing.GPUS_IN_ARRAYS_MIN and view.nodes_per_job_max == 0
    if not is_large or view.explain or len(view.index.inventory.gpus) > 1:
        return ojpp_packing.pack(view, FREE_MEMORY_RULES, by_arrival)
    round_ = SharingRound(view, FreeMemoryPlacement(view))
    is_long = len(view.pending) >= length_queue.QUEUE_LONG_MIN
    queue = view.index.by_service() if is_long else None
    return round_.decide_by_shape(queue) if queue is not None else round_.decide_all(view.pending)


class FreeMemoryPlacement:
    """Jobs go to the GPUs with most free memory; what earlier jobs took is gone for later ones.

    Args:
        view: The cluster, with GPUs of one kind and no limit of nodes.
    """

    def __init__(self, view: SchedulingView) -> None:
        self._view = view
        self._ledger = Ledger(view)
        self._inventory = view.index.inventory
        (self._gpu,) = self._inventory.gpus.values()
        self._arrays = arrays = view.index.arrays.for_one_round()
        self._prices = prices_of(view, arrays)
        self._full = full_reason(view)
        self._open_count = int(np.count_nonzero(self._prices.is_open(arrays.classes)[arrays.class_of]))
        self._present = _present_in(arrays)
        self._first_known: AlikeGpus | None = None

    def key(self, job: PendingJob) -> object:
        """Return the shape of a job."""
        return shape_of(job.request)

    def closed(self) -> Reason | None:
        """Return why no job can start any more."""
        return None if self._open_count else self._full

    def opens_places(self, start: Start) -> bool:
        """Memory only shrinks as GPUs fill."""
        return False

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return nothing: no table is wanted."""
        return ()

    def place(self, job: PendingJob) -> Start | Reason:
        """Start a job on the GPUs with most free memory, or return why not."""
        request = job.request
        if not self._open_count:
            return self._full
        worker = self._worker(request)
        if worker is None:
            return impossible_reason(self._view, self._inventory, request) or self._too_large(request)
        arrays, numbers = self._arrays, self._present
        by_class = self._prices.costs_of(request, numbers, arrays.classes, partial(self._price, worker))
        room = arrays.hosts_with_room(request, 1)
        if room is None and by_class[numbers].min() == inf:  # as for nearly all of a long queue
            return impossible_reason(self._view, self._inventory, request) or self._nearest(worker)
        costs = by_class[arrays.class_of]
        if room is not None:
            costs = np.where(room[arrays.node_of], costs, inf)
        chosen = self._choose(request, costs)
        return self._start(worker, chosen) if chosen is not None else self._wait_reason(worker, costs)

    def _worker(self, request: JobRequest) -> Resident | None:
        prediction = self._view.predictions.job(request.key, self._gpu.device)
        worker = resident_on(request, prediction, samples_per_gpu(request, request.gpus), self._gpu)
        return worker and opportunistic(worker, prediction, self._gpu, self._view.opportunistic_tau_ratio)

    def _too_large(self, request: JobRequest) -> Reason:
        """Return why no GPU takes a worker, where it could be had in several passes: these policies start none so."""
        gpu, prediction = self._gpu, self._view.predictions.job(request.key, self._gpu.device)
        needed_bytes = expected_bytes(request, prediction, samples_per_gpu(request, request.gpus))
        numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
        return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers)

    def _price(self, worker: Resident, load: LoadClass) -> float | Reason:
        """Return what a class costs a worker, less being better, or why it cannot come there."""
        return self._obstacle(worker, load) or -float(load.gpu.memory_bytes - load.memory_used_bytes)

    def _obstacle(self, worker: Resident, load: LoadClass) -> Reason | None:
        """Return why a worker cannot come to a GPU loaded so; hosts are looked at elsewhere."""
        gpu, needed_bytes = load.gpu, worker.memory_reserved_bytes
        free_bytes = gpu.memory_bytes - load.memory_used_bytes
        if needed_bytes > free_bytes:
            numbers = {"needed_bytes": needed_bytes, "free_bytes": free_bytes, "gpu_memory_bytes": gpu.memory_bytes}
            return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        if not load.residents:
            return None
        return sharing_obstacle(worker, load.residents, gpu, self._view.predictions)

    def _choose(self, request: JobRequest, costs: NDArray[np.float64]) -> Sequence[int] | None:
        """Return the positions of the cheapest GPUs whose hosts admit them together; None = there are too few."""
        gpus = request.gpus
        if gpus == 1:
            best = int(costs.argmin())
            return (best,) if costs[best] < inf else None
        if np.isfinite(costs).sum() < gpus:
            return None
        in_order = np.argsort(costs, kind="stable")
        if not request.cpu_cores and not request.host_memory_bytes:
            return [int(position) for position in in_order[:gpus]]
        chosen: list[int] = []
        on_node: Counter[int] = Counter()
        for position in self._admitted(request, in_order[np.isfinite(costs[in_order])], on_node):
            on_node[int(self._arrays.node_of[position])] += 1
            chosen.append(position)
            if len(chosen) == gpus:
                return chosen
        return None

    def _admitted(self, request: JobRequest, positions: Positions, on_node: Counter[int]) -> Iterator[int]:
        """Yield the GPUs whose hosts have room for one more worker beside those that are counted there."""
        for position in positions:
            node = int(self._arrays.node_of[position])
            room = self._arrays.hosts_with_room(request, on_node[node] + 1)
            if room is None or room[node]:
                yield int(position)

    def _start(self, worker: Resident, chosen: Sequence[int]) -> Start:
        arrays = self._arrays
        start = start_on(self._ledger, worker, [arrays.gpu_ids[position] for position in chosen])
        arrays.place(worker, chosen)
        self._open_count -= sum(not is_open(arrays.classes[arrays.class_of[position]]) for position in chosen)
        self._present, self._first_known = _present_in(arrays), None
        return start

    def _wait_reason(self, worker: Resident, costs: NDArray[np.float64]) -> Reason:
        """Return the reason that was nearest to a start."""
        request = worker.request
        impossible = impossible_reason(self._view, self._inventory, request)
        if impossible is not None:
            return impossible
        widest = int(np.isfinite(costs).sum())
        if widest:
            if widest < request.gpus:
                return Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": widest})
            return host_reason(request)
        entries = (self._view.gpus[gpu_id] for gpu_id in self._arrays.gpu_ids)
        obstacles = [one for one in (self._obstacle_on(worker, entry) for entry in entries) if one is not None]
        return nearest_obstacle(obstacles) if obstacles else self._full

    def _nearest(self, worker: Resident) -> Reason:
        """Return the same where hosts refuse nothing: what refuses a job on one GPU of a class does on all."""
        alike = self._first_of_classes()
        nearest = self._prices.nearness_of(worker.request).nearest(alike)
        if nearest is None:
            return self._full
        return self._obstacle_on(worker, self._view.gpus[alike.gpu_ids[nearest]]) or self._full

    def _obstacle_on(self, worker: Resident, entry: GpuView) -> Reason | None:
        """Return why a worker cannot come to one GPU; None = it is closed, or could."""
        gpu_id, request = entry.gpu.gpu_id, worker.request
        load = LoadClass(
            gpu=entry.gpu,
            residents=self._ledger.residents(gpu_id),
            memory_used_bytes=self._ledger.memory_used_bytes(gpu_id),
            is_releasing=entry.is_releasing,
        )
        if not is_open(load):
            return None
        if not self._ledger.host_fits(self._view.nodes[entry.node_id], request, gpus_here=1, gpus=request.gpus):
            return host_reason(request)
        return self._obstacle(worker, load)

    def _first_of_classes(self) -> AlikeGpus:
        """Return the load classes that are left, each with the GPU of it whose id is first."""
        if self._first_known is None:
            arrays = self._arrays
            by_name = _positions_by_name(arrays)
            numbers, firsts = np.unique(arrays.class_of[by_name], return_index=True)
            self._first_known = AlikeGpus(numbers, [arrays.gpu_ids[position] for position in by_name[firsts]])
        return self._first_known


def _present_in(arrays: GpuArrays) -> Positions:
    """Return the numbers of the load classes that a GPU is in."""
    return np.flatnonzero(np.bincount(arrays.class_of))


def _positions_by_name(arrays: GpuArrays) -> Positions:
    kept = arrays.notes.get(_BY_NAME)
    if not isinstance(kept, np.ndarray):
        arrays.notes[_BY_NAME] = kept = np.argsort(np.array(arrays.gpu_ids))
    return kept
