"""One round of placement by least cost: filters, Horus' cost, groups of GPUs for gangs.

Source:
    Horus (Yeung et al.), Algorithm 1 lines 7-18 and Eq. 7-10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler_service.core.capacity import (
    Resident,
    expected_bytes,
    reserved_bytes,
    samples_per_gpu,
    sharing_obstacle,
)
from scheduler_service.core.decisions import Candidate, Decision, Hold, Start
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.view import GpuView, PendingJob, SchedulingView
from scheduler_service.policies.placement import (
    Kind,
    host_reason,
    impossible_reason,
    inventory_of,
    kind_of,
    nearest_obstacle,
    ranked,
    shape_of,
)
from scheduler_service.policies.placement_reasons import full_reason, start_reason

_PlaceOf = Callable[[GpuView], str]


@dataclass(frozen=True, slots=True)
class Curve:
    """Expected slowdown over summed utilization (1 = 100 %): coefficients by rising power."""

    linear: tuple[float, float]
    quadratic: tuple[float, float, float]

    @classmethod
    def of(cls, *, linear: Sequence[float], quadratic: Sequence[float]) -> Curve:
        """Build a curve from two and three numbers.

        Raises:
            ValueError: There are more or fewer.
        """
        (low_0, low_1), (high_0, high_1, high_2) = linear, quadratic
        return cls((float(low_0), float(low_1)), (float(high_0), float(high_1), float(high_2)))

    def slowdown_ratio(self, utilization_ratio: float) -> float:
        """Return f- up to 100 %, f+ above (Eq. 9)."""
        if utilization_ratio <= 1.0:
            return self.linear[0] + self.linear[1] * utilization_ratio
        c0, c1, c2 = self.quadratic
        return c0 + c1 * utilization_ratio + c2 * utilization_ratio**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Weights, limits and fitted curves; see the parameters of `Horus`."""

    weight_memory: float
    weight_utilization: float
    max_jobs_per_gpu: int
    memory_max_ratio: float
    utilization_max_ratio: float
    locality_gpus: int
    curves: Mapping[str, Curve]
    default_curve: Curve

    def cost(self, *, memory_ratio: float, utilization_ratio: float, device: str) -> float:
        """Return the cost of a GPU's final load (Eq. 7).

        Args:
            memory_ratio: Memory in use with the job over the GPU's memory (Eq. 8).
            utilization_ratio: Summed utilization with the job, 1 = 100 % (Eq. 10).
            device: Device type, for its fitted curve.
        """
        curve = self.curves.get(device, self.default_curve)
        return self.weight_memory * memory_ratio + self.weight_utilization * curve.slowdown_ratio(utilization_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One GPU that could take the job; `resident` = the job as it would be there."""

    resident: Resident
    cost: float
    node_id: str
    index: int
    gpu_id: str

    @property
    def order(self) -> tuple[float, str, int, str]:
        """Cheapest first; ties never depend on luck."""
        return self.cost, self.node_id, self.index, self.gpu_id


class LeastCostRound:
    """One call of decide: what earlier jobs took is gone for later ones.

    Args:
        view: The cluster.
        costs: Weights, limits and curves.
    """

    def __init__(self, view: SchedulingView, costs: CostModel) -> None:
        self._view = view
        self._costs = costs
        self._ledger = Ledger(view)
        self._inventory = inventory_of(view)
        self._failed: dict[object, Reason] = {}
        self._open_gpus = dict.fromkeys(gpu_id for gpu_id in view.gpus if self._is_open(gpu_id))
        self._full = full_reason(view)

    def _is_open(self, gpu_id: str) -> bool:
        """The GPU could take some job."""
        entry = self._view.gpus[gpu_id]
        has_slot = self._ledger.job_count(gpu_id) < self._costs.max_jobs_per_gpu
        return has_slot and not entry.is_releasing and self._memory_left(entry) > 0

    def has_room(self) -> bool:
        """Say whether any GPU could take any job."""
        return bool(self._open_gpus)

    def known_obstacle(self, request: JobRequest) -> Reason | None:
        """Return why a job cannot start where that needs no look at the GPUs: nobody can, or an equal job could not."""
        return self._failed.get(shape_of(request)) if self._open_gpus else self._full

    def decide(self, job: PendingJob) -> Decision:
        """Start a job on its cheapest GPUs, or say why not."""
        request = job.request
        options, obstacles = self._look(request)
        gpu_ids = self._choose(request, options)
        candidates = self._table(options, obstacles, gpu_ids or ()) if self._view.explain else ()
        if gpu_ids is not None:
            return self._start(request, gpu_ids, options, candidates)
        reason = impossible_reason(self._view, self._inventory, request) or self._wait_reason(
            request, options, obstacles
        )
        self._failed[shape_of(request)] = reason
        return Hold(job_id=request.job_id, reason=reason, candidates=candidates)

    def _look(self, request: JobRequest) -> tuple[dict[str, _Option], dict[str, Reason]]:
        """Filter every GPU and price those that pass (lines 8 and 14)."""
        options: dict[str, _Option] = {}
        obstacles: dict[str, Reason] = {}
        wanted = self._view.gpus if self._view.explain or not self._open_gpus else self._open_gpus
        for gpu_id in wanted:
            entry = self._view.gpus[gpu_id]
            found = self._option(request, entry)
            if isinstance(found, Reason):
                obstacles[gpu_id] = found
            else:
                options[gpu_id] = found
        return options, obstacles

    def _option(self, request: JobRequest, entry: GpuView) -> _Option | Reason:
        gpu_id, gpu = entry.gpu.gpu_id, entry.gpu
        obstacle = self._slot_obstacle(request, entry)
        if obstacle is not None:
            return obstacle
        resident = self._resident(request, entry)
        if resident is None:
            prediction = self._view.predictions.job(request.key, gpu.device)
            needed_bytes = expected_bytes(request, prediction, samples_per_gpu(request, request.gpus))
            numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
            return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers, gpu_ids=(gpu_id,))
        residents = self._ledger.residents(gpu_id)
        refusal = sharing_obstacle(resident, residents, gpu, self._view.predictions) if residents else None
        if refusal is not None:
            return refusal
        need = resident.memory_reserved_bytes
        utilization_ratio = sum(self._utilization(other, gpu.device) for other in (resident, *residents))
        used = self._ledger.memory_used_bytes(gpu_id) + need
        limit = self._limit_obstacle(entry, need, utilization_ratio, is_shared=bool(residents))
        if limit is not None:
            return limit
        cost = self._costs.cost(
            memory_ratio=used / gpu.memory_bytes, utilization_ratio=utilization_ratio, device=gpu.device
        )
        return _Option(resident=resident, cost=cost, node_id=entry.node_id, index=gpu.index, gpu_id=gpu_id)

    def _slot_obstacle(self, request: JobRequest, entry: GpuView) -> Reason | None:
        gpu_id = entry.gpu.gpu_id
        if entry.is_releasing:
            return Reason(code="GPU_RELEASING", gpu_ids=(gpu_id,))
        jobs_on_gpu = self._ledger.job_count(gpu_id)
        if jobs_on_gpu >= self._costs.max_jobs_per_gpu:
            numbers = {"jobs_on_gpu": jobs_on_gpu, "jobs_on_gpu_max": self._costs.max_jobs_per_gpu}
            return Reason(code="TOO_MANY_JOBS", numbers=numbers, job_ids=entry.job_ids, gpu_ids=(gpu_id,))
        node = self._view.nodes[entry.node_id]
        if not self._ledger.host_fits(node, request, gpus_here=1, gpus=request.gpus):
            return host_reason(request)
        return None

    def _limit_obstacle(
        self, entry: GpuView, need_bytes: int, utilization_ratio: float, *, is_shared: bool
    ) -> Reason | None:
        gpu = entry.gpu
        left = self._memory_left(entry) if is_shared else gpu.memory_bytes
        if need_bytes > left:
            numbers = {"needed_bytes": need_bytes, "free_bytes": left, "gpu_memory_bytes": gpu.memory_bytes}
            return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        if is_shared and utilization_ratio > self._costs.utilization_max_ratio:
            most = self._costs.utilization_max_ratio
            ratios = {"utilization_ratio": utilization_ratio, "utilization_max_ratio": most}
            return Reason(code="UTILIZATION_TOO_HIGH", numbers=ratios, gpu_ids=(gpu.gpu_id,))
        return None

    def _memory_left(self, entry: GpuView) -> int:
        allowed = int(entry.gpu.memory_bytes * self._costs.memory_max_ratio)
        return allowed - self._ledger.memory_used_bytes(entry.gpu.gpu_id)

    def _resident(self, request: JobRequest, entry: GpuView) -> Resident | None:
        sub_batch = samples_per_gpu(request, request.gpus)
        prediction = self._view.predictions.job(request.key, entry.gpu.device)
        reserved = reserved_bytes(request, prediction, sub_batch, entry.gpu)
        if reserved is None:
            return None
        return Resident(request=request, sub_batch=sub_batch, memory_reserved_bytes=reserved)

    def _utilization(self, resident: Resident, device: str) -> float:
        """A job about which nothing is known is taken to use the whole GPU."""
        prediction = self._view.predictions.job(resident.request.key, device)
        return prediction.utilization_ratio if prediction is not None else 1.0

    def _choose(self, request: JobRequest, options: Mapping[str, _Option]) -> tuple[str, ...] | None:
        """Take the cheapest GPUs of one kind (line 16), inside the smallest group that locality asks for."""
        for groups in self._group_levels(request, options):
            found: list[tuple[float, list[tuple[float, str, int, str]]]] = []
            for group in groups:
                cheapest = sorted(option.order for option in group)[: request.gpus]
                if len(cheapest) == request.gpus and self._hosts_fit(request, cheapest):
                    found.append((sum(option[0] for option in cheapest), cheapest))
            if found:
                return tuple(option[3] for option in min(found)[1])
        return None

    def _group_levels(
        self, request: JobRequest, options: Mapping[str, _Option]
    ) -> Iterator[Sequence[Sequence[_Option]]]:
        """Yield groups of GPUs to look into: by node, by rack, all (4.2.3); always of one kind."""
        nodes_max = self._view.nodes_per_job_max
        is_local = request.gpus >= self._costs.locality_gpus
        if is_local or nodes_max == 1:
            yield self._grouped(options, lambda entry: entry.node_id)
        if nodes_max == 1:
            return
        if is_local:
            yield self._grouped(options, lambda entry: self._view.nodes[entry.node_id].rack_id)
        yield self._grouped(options, lambda entry: "")

    def _grouped(self, options: Mapping[str, _Option], place_of: _PlaceOf) -> list[list[_Option]]:
        groups: dict[tuple[str, Kind], list[_Option]] = {}
        for gpu_id, option in options.items():
            entry = self._view.gpus[gpu_id]
            kind = kind_of(entry.gpu)
            groups.setdefault((place_of(entry), kind), []).append(option)
        return list(groups.values())

    def _hosts_fit(self, request: JobRequest, chosen: Sequence[tuple[float, str, int, str]]) -> bool:
        node_ids = [node_id for _, node_id, _, _ in chosen]
        distinct = dict.fromkeys(node_ids)
        if self._view.nodes_per_job_max and len(distinct) > self._view.nodes_per_job_max:
            return False
        return all(
            self._ledger.host_fits(
                self._view.nodes[node_id], request, gpus_here=node_ids.count(node_id), gpus=request.gpus
            )
            for node_id in distinct
        )

    def _wait_reason(
        self, request: JobRequest, options: Mapping[str, _Option], obstacles: Mapping[str, Reason]
    ) -> Reason:
        """Return the reason that was nearest to a start."""
        if options and request.gpus > len(options):
            return Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": len(options)})
        if options:
            on_one_node = max(map(len, self._grouped(options, lambda entry: entry.node_id)))
            if on_one_node < request.gpus:
                return Reason(code="NO_FREE_GPU", numbers={"gpus_needed": request.gpus, "gpus_free": on_one_node})
            return host_reason(request)
        if not obstacles:
            return self._full
        return nearest_obstacle(obstacles.values())

    def _start(
        self,
        request: JobRequest,
        gpu_ids: tuple[str, ...],
        options: Mapping[str, _Option],
        candidates: tuple[Candidate, ...],
    ) -> Start:
        resident, cost = options[gpu_ids[0]].resident, sum(options[gpu_id].cost for gpu_id in gpu_ids)
        reason = start_reason(self._ledger, resident, gpu_ids, {"cost": cost})
        assignments = ranked(gpu_ids)
        self._ledger.place(resident, assignments)
        for gpu_id in gpu_ids:
            if not self._is_open(gpu_id):
                self._open_gpus.pop(gpu_id, None)
        return Start(
            job_id=request.job_id,
            reason=reason,
            assignments=assignments,
            sub_batch=samples_per_gpu(request, request.gpus),
            candidates=candidates,
        )

    def _table(
        self, options: Mapping[str, _Option], obstacles: Mapping[str, Reason], chosen: Sequence[str]
    ) -> tuple[Candidate, ...]:
        feasible = [
            Candidate(
                gpu_id=option.gpu_id,
                feasible=True,
                reason=Reason(code="CANDIDATE", numbers={"cost": option.cost}, gpu_ids=(option.gpu_id,)),
                cost=option.cost,
                chosen=option.gpu_id in chosen,
            )
            for option in sorted(options.values(), key=lambda option: option.order)
        ]
        rest = [Candidate(gpu_id=gpu_id, feasible=False, reason=reason) for gpu_id, reason in obstacles.items()]
        return (*feasible, *rest)
