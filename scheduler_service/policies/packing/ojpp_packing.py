"""One round of packing workers into as few devices as the constraints allow.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    Algorithm 1, and Algorithm 2 line 6. Corrected: a worker too large for an empty device makes its job wait with a
    reason (the paper puts it on a new device unchecked), and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.capacity import (
    Resident,
    expected_bytes,
    opportunistic,
    resident_on,
    samples_per_gpu,
)
from scheduler_service.core.cluster_view.inventory import Kind, alike_for_one, is_slice
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import GpuView, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Decision, Start
from scheduler_service.core.records import Gpu, JobRequest, Reason
from scheduler_service.core.sharing.colocation_slowdown import ExpectedSlowdown
from scheduler_service.core.sharing.sharing_consent import consented_slowdowns
from scheduler_service.policies.packing.device_offer import Device, Offer
from scheduler_service.policies.packing.opportunistic_memory import Demand, demand_of
from scheduler_service.policies.packing.packing_arrays import PackingArrays
from scheduler_service.policies.packing.packing_orders import DemandOf
from scheduler_service.policies.packing.packing_rules import ROUNDING_DIGITS, Best, PackingRules
from scheduler_service.policies.packing.resulting_interference import WorkerBalance
from scheduler_service.policies.packing.sure_refusals import SureRefusals
from scheduler_service.policies.packing.worker_mapping import WorkerMapper, WorkerMapping
from scheduler_service.policies.placement.free_gpus import free_by_likeness
from scheduler_service.policies.placement.reasons import (
    full_reason,
    host_reason,
    impossible_reason,
    nearest_obstacle,
)
from scheduler_service.policies.placement.sharing_round import SharingRound
from scheduler_service.policies.placement.starts import start_on

Order = Callable[[Sequence[PendingJob], DemandOf], Sequence[PendingJob]]
GPUS_IN_ARRAYS_MIN = 64
"""On smaller clusters looking at each GPU costs less than building arrays."""
JOBS_IN_ARRAYS_MIN = 2
"""And so for a single job on a cluster of any size: its one look at each GPU is cheaper than a column entry for it."""
_WHOLE_DEVICE = Demand(compute_ratio=1.0, base_ratio=1.0)
_ALONE: Sequence[tuple[Resident, ExpectedSlowdown]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """The jobs that would be on a device, the incoming one first, and what they need."""

    residents: tuple[Resident, ...]
    demands: tuple[Demand, ...]
    slowdowns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Refusals:
    """What keeps GPUs from taking a worker.

    Attributes:
        reasons: Why some refuse it.
        unasked: GPUs that surely refuse it, each with the worker; why is found only where it is told.
    """

    reasons: list[Reason] = field(default_factory=list)
    unasked: list[tuple[Resident, GpuView]] = field(default_factory=list)


def pack(view: SchedulingView, rules: PackingRules, order: Order) -> list[Decision]:
    """Return one decision per pending job, jobs being placed in this order; equal jobs wait as one object."""
    placement = OjppPacking(view, rules)
    jobs = order(view.pending, placement.demand) if placement.closed() is None else view.pending
    return SharingRound(view, placement).decide_all(jobs)


class OjppPacking:
    """Workers go to as few GPUs as the constraints allow; what earlier jobs took is gone for later ones.

    Args:
        view: The cluster.
        rules: The constraints of the policy.
    """

    def __init__(self, view: SchedulingView, rules: PackingRules) -> None:
        self._view = view
        self._rules = rules
        self._ledger = Ledger(view)
        self._inventory, self._running = view.index.inventory, view.index.reported
        self._balance = WorkerBalance(self._ledger)
        self._mapper = WorkerMapper(self._ledger, rules, self._balance)
        self._kinds = {alike_for_one(gpu): gpu for gpu in reversed([*self._inventory.gpus.values()])}
        self._free = free_by_likeness(view)
        self._in_use: dict[Kind, dict[str, None]] = {}
        self._update_in_use(gpu_id for gpu_id, entry in view.gpus.items() if entry.job_ids)
        self._packing = self._arrays()
        self._balance.arrays = self._packing
        self._full = full_reason(view)
        self._demands: dict[object, Demand] = {}
        self._asked: tuple[Resident, Demand] | None = None

    def _arrays(self) -> PackingArrays | None:
        """Return the arrays of a large cluster with GPUs of one kind, where jobs wait; else GPUs are looked at."""
        is_large = len(self._view.gpus) >= GPUS_IN_ARRAYS_MIN and self._view.nodes_per_job_max == 0
        if (
            not is_large
            or len(self._view.pending) < JOBS_IN_ARRAYS_MIN
            or self._view.explain
            or len(self._inventory.gpus) > 1
            or self._view.predictions.ways_counts
            or not self._rules.bounds_harmless_collisions
            or not self._rules.prefers_devices_in_use
        ):
            return None
        (gpu,) = self._inventory.gpus.values()
        # Of this object the arrays know nothing: in a ring every plan of a round would stay until a collection.
        predictions, alpha = self._view.predictions, self._rules.alpha
        return PackingArrays(self._ledger, gpu, self._rules, lambda worker: demand_of(worker, gpu, predictions, alpha))

    def key(self, job: PendingJob) -> object:
        """Return the shape of a job."""
        return shape_of(job.request)

    def closed(self) -> Reason | None:
        """Return why no job can start any more."""
        return None if self._ledger.free_count() > 0 or any(self._in_use.values()) else self._full

    def opens_places(self, start: Start) -> bool:
        """Constraints only tighten as GPUs fill."""
        return False

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return every GPU as it looks to one worker of a job that waits."""
        return self._table(job.request, None)

    def demand(self, request: JobRequest) -> Demand:
        """Return what a worker asks, on the kind of GPU where that is most; a job that fits none asks for all."""
        shape = shape_of(request)
        if shape not in self._demands:
            workers = [(self._worker(request, gpu), gpu) for gpu in self._kinds.values()]
            demands = [self._demand(worker, gpu) for worker, gpu in workers if worker is not None]
            self._demands[shape] = max(demands, key=lambda demand: demand.size, default=_WHOLE_DEVICE)
        return self._demands[shape]

    def place(self, job: PendingJob) -> Start | Reason:
        """Start a job on the best GPUs, or return why not."""
        request = job.request
        if self.closed() is not None:
            return self._full
        refusals = _Refusals()
        offers = self._offers_from_arrays(request)
        mapping = self._mapper.map_job(offers)
        if mapping is None:
            offers = [offer for kind in sorted(self._kinds) for offer in self._offers(request, kind, refusals)]
            mapping = self._mapper.map_job(offers) if self._packing is None else None
        return self._wait_reason(request, offers, refusals) if mapping is None else self._start(mapping)

    def _worker(self, request: JobRequest, gpu: Gpu) -> Resident | None:
        prediction = self._view.predictions.job(request.key, gpu.device)
        worker = resident_on(request, prediction, samples_per_gpu(request, request.gpus), gpu)
        return worker and opportunistic(worker, prediction, gpu, self._view.opportunistic_tau_ratio)

    def _demand(self, resident: Resident, gpu: Gpu) -> Demand:
        return demand_of(resident, gpu, self._view.predictions, self._rules.alpha)

    def _offers(self, request: JobRequest, kind: Kind, refusals: _Refusals) -> list[Offer]:
        """Return what a kind of GPUs offers: one node at a time where a job must stay on one, else all together."""
        gpu = self._kinds[kind]
        if request.gpus > 1 and is_slice(gpu):
            return []
        worker = self._worker_or_obstacle(request, gpu)
        if isinstance(worker, Reason):
            refusals.reasons.append(worker)
            return []
        free = self._free_with_room(worker, kind, refusals.reasons)
        gpu_ids = list(self._in_use.get(kind, ()))
        if not self._rules.prefers_devices_in_use:
            gpu_ids += [gpu_id for on_node in free.values() for gpu_id in on_node]
        sure = SureRefusals(worker, gpu, self._view.predictions, self._rules)
        devices: list[Device] = []
        for entry in map(self._view.gpus.__getitem__, gpu_ids):
            there = self._only_job(entry)
            if there is not None and sure.include(there, entry.gpu):
                refusals.unasked.append((worker, entry))
                continue
            found = self._device(worker, entry)
            if isinstance(found, Reason):
                refusals.reasons.append(found)
            else:
                devices.append(found)
        devices.sort(key=lambda device: device.order)
        if self._view.nodes_per_job_max != 1 or request.gpus == 1:
            return [self._offer(worker, devices, free)]
        by_node: dict[str, list[Device]] = {node_id: [] for node_id in free}
        for device in devices:
            by_node.setdefault(device.node_id, []).append(device)
        return [
            self._offer(worker, there, {node_id: free[node_id]} if node_id in free else {})
            for node_id, there in by_node.items()
        ]

    def _offers_from_arrays(self, request: JobRequest) -> list[Offer]:
        """Return what the GPUs offer where there are arrays; empty = each has to be looked at."""
        packing = self._packing
        if packing is None or not packing.is_usable:
            self._packing = self._balance.arrays = None
            return []
        (gpu,) = self._inventory.gpus.values()
        worker = self._worker_or_obstacle(request, gpu)
        if isinstance(worker, Reason):
            return []
        devices = packing.devices(worker)
        if devices is None:
            self._packing = self._balance.arrays = None
            return []
        free = self._free_with_room(worker, alike_for_one(gpu), [])
        return [self._offer(worker, devices, free)]

    def _free_with_room(self, worker: Resident, kind: Kind, obstacles: list[Reason]) -> dict[str, list[str]]:
        """Return the unused devices of a kind on nodes whose hosts have room for a worker."""
        request = worker.request
        if not request.cpu_cores and not request.host_memory_bytes:
            return self._free.get(kind, {})
        found: dict[str, list[str]] = {}
        for node_id, gpu_ids in self._free.get(kind, {}).items():
            if self._ledger.host_fits(self._view.nodes[node_id], request, gpus_here=1, gpus=request.gpus):
                found[node_id] = gpu_ids
            else:
                obstacles.append(host_reason(request))
        return {node_id: gpu_ids for node_id, gpu_ids in found.items() if gpu_ids}

    def _offer(self, worker: Resident, devices: Sequence[Device], free: dict[str, list[str]]) -> Offer:
        first = next((self._device(worker, self._view.gpus[gpu_ids[0]]) for gpu_ids in free.values()), None)
        unused = first if isinstance(first, Device) else None
        return Offer(worker=worker, devices=devices, unused=unused, free=free)

    def _worker_or_obstacle(self, request: JobRequest, gpu: Gpu) -> Resident | Reason:
        """Return a worker that fits an empty device of this kind, or why there is none."""
        worker = self._worker(request, gpu)
        if worker is None:
            prediction = self._view.predictions.job(request.key, gpu.device)
            needed_bytes = expected_bytes(request, prediction, samples_per_gpu(request, request.gpus))
            return Reason(
                code="MEMORY_EXCEEDS_GPU", numbers={"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
            )
        demand = self._demand(worker, gpu)
        if self._rules.demand_obstacle(gpu.gpu_id, (demand,)) is None:
            return worker
        needed_bytes = int(demand.peak_ratio * gpu.memory_bytes)
        return Reason(
            code="PEAK_EXCEEDS_GPU", numbers={"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
        )

    def _only_job(self, entry: GpuView) -> RunningJob | None:
        """Return the one job on a GPU; None = there are more or none, or one of this round."""
        is_only = len(entry.job_ids) == 1 and self._ledger.job_count(entry.gpu.gpu_id) == 1
        return self._running[entry.job_ids[0]] if is_only else None

    def _device(self, worker: Resident, entry: GpuView) -> Device | Reason:
        """Check all that does not depend on where the job's other workers go (Algorithm 2 line 6)."""
        load = self._load(worker, entry)
        if isinstance(load, Reason):
            return load
        score, tie_breaker = self._rank(load, entry)
        return Device(
            gpu_id=entry.gpu.gpu_id,
            node_id=entry.node_id,
            index=entry.gpu.index,
            score=score,
            tie_breaker=tie_breaker,
            own_slowdown_ratio=load.slowdowns[0],
            is_new=len(load.residents) == 1,
        )

    def _load(self, worker: Resident, entry: GpuView) -> _Load | Reason:
        gpu, gpu_id = entry.gpu, entry.gpu.gpu_id
        obstacle = self._room_obstacle(worker, entry)
        if obstacle is not None:
            return obstacle
        others = self._ledger.residents(gpu_id)
        residents = (worker, *others)
        consented = consented_slowdowns(worker, others, gpu, self._view.predictions) if others else _ALONE
        if isinstance(consented, Reason):
            return consented
        demands = (self._demand_of_asked(worker, gpu), *[self._demand(resident, gpu) for resident in others])
        obstacle = self._rules.demand_obstacle(gpu_id, demands)
        if obstacle is not None:
            return obstacle
        # Of one job alone there is nothing to consent to.
        slowdowns = tuple([slowdown.pairwise_sum_ratio for _, slowdown in consented]) or (0.0,)
        job_ids = [resident.request.job_id for resident in residents]
        too_slow = self._rules.slowdown_obstacle(gpu_id, job_ids, slowdowns)
        return too_slow or _Load(residents=residents, demands=demands, slowdowns=slowdowns)

    def _demand_of_asked(self, worker: Resident, gpu: Gpu) -> Demand:
        """Return the demand of a worker that is asked about on one GPU after the other."""
        if self._asked is None or self._asked[0] is not worker:
            self._asked = worker, self._demand(worker, gpu)
        return self._asked[1]

    def _room_obstacle(self, worker: Resident, entry: GpuView) -> Reason | None:
        """Return what the plan check would refuse: a GPU not yet released, a full host, too large reservations."""
        gpu, request = entry.gpu, worker.request
        if entry.is_releasing:
            return Reason(code="GPU_RELEASING", gpu_ids=(gpu.gpu_id,))
        if not self._ledger.host_fits(self._view.nodes[entry.node_id], request, gpus_here=1, gpus=request.gpus):
            return host_reason(request)
        free_bytes = self._ledger.memory_free_bytes(entry)
        needed_bytes = self._ledger.memory_needed_bytes(worker, entry)
        if needed_bytes <= free_bytes:
            return None
        numbers = {"needed_bytes": needed_bytes, "free_bytes": free_bytes, "gpu_memory_bytes": gpu.memory_bytes}
        return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))

    def _rank(self, load: _Load, entry: GpuView) -> tuple[float, float]:
        """Return the criterion of the policy and the one that decides between equals, lower being better."""
        if self._rules.best is Best.MOST_FREE_MEMORY:
            return -float(self._ledger.memory_free_bytes(entry)), 0.0
        leftover = self._rules.leftover(load.demands)
        if self._rules.best is Best.LEAST_LEFTOVER:
            return leftover, 0.0
        return round(max(load.slowdowns), ROUNDING_DIGITS), leftover

    def _wait_reason(self, request: JobRequest, offers: Sequence[Offer], refusals: _Refusals) -> Reason:
        """Return the reason that was nearest to a start."""
        impossible = impossible_reason(self._view, self._inventory, request)
        if impossible is not None:
            return impossible
        widest = max((offer.width for offer in offers), default=0)
        if widest == 0:
            told = (self._load(worker, entry) for worker, entry in refusals.unasked)
            obstacles = [*refusals.reasons, *(one for one in told if isinstance(one, Reason))]
            return nearest_obstacle(obstacles) if obstacles else self._full
        if widest < request.gpus:
            return Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": widest})
        alone = [self._mapper.balance_obstacle(offer.worker, device) for offer in offers for device in offer.devices]
        unbalanced = [reason for reason in alone if reason is not None]
        return nearest_obstacle(unbalanced) if unbalanced else host_reason(request)

    def _start(self, mapping: WorkerMapping) -> Start:
        worker, table = mapping.worker, self._table(mapping.worker.request, mapping)
        start = start_on(self._ledger, worker, mapping.gpu_ids, candidates=table)
        self._balance.add(worker.request.job_id, mapping.gpu_ids)
        if self._packing is not None:
            self._packing.place(worker, mapping.gpu_ids)
        for gpu_id in mapping.gpu_ids:
            entry = self._view.gpus[gpu_id]
            free = self._free.get(alike_for_one(entry.gpu), {})
            if gpu_id in free.get(entry.node_id, ()):
                free[entry.node_id].remove(gpu_id)
                if not free[entry.node_id]:
                    del free[entry.node_id]
        self._update_in_use(mapping.gpu_ids)
        return start

    def _update_in_use(self, gpu_ids: Iterable[str]) -> None:
        """Keep the devices in use that have memory left; the others need no look."""
        for gpu_id in gpu_ids:
            entry = self._view.gpus[gpu_id]
            in_use = self._in_use.setdefault(alike_for_one(entry.gpu), {})
            if entry.is_releasing or self._ledger.memory_free_bytes(entry) <= 0:
                in_use.pop(gpu_id, None)
            else:
                in_use[gpu_id] = None

    def _table(self, request: JobRequest, mapping: WorkerMapping | None) -> tuple[Candidate, ...]:
        """Return every GPU as it looks to one worker of the job; nothing where no table is asked for."""
        if not self._view.wants_table(request.job_id):
            return ()
        chosen = mapping.gpu_ids if mapping is not None else ()
        return tuple(self._candidate(request, entry, chosen) for entry in self._view.gpus.values())

    def _candidate(self, request: JobRequest, entry: GpuView, chosen: Sequence[str]) -> Candidate:
        gpu_id = entry.gpu.gpu_id
        worker = self._worker_or_obstacle(request, entry.gpu)
        if isinstance(worker, Reason):
            return Candidate(gpu_id=gpu_id, feasible=False, reason=worker)
        device = self._device(worker, entry)
        if isinstance(device, Reason):
            return Candidate(gpu_id=gpu_id, feasible=False, reason=device)
        obstacle = self._mapper.balance_obstacle(worker, device)
        if obstacle is not None:
            return Candidate(gpu_id=gpu_id, feasible=False, reason=obstacle, cost=device.score)
        return Candidate(
            gpu_id=gpu_id,
            feasible=True,
            reason=Reason(code="CANDIDATE", numbers={"cost": device.score}, gpu_ids=(gpu_id,)),
            cost=device.score,
            chosen=gpu_id in chosen,
        )
