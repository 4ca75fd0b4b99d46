"""What loads of GPUs cost a job under Horus, or why they refuse it; hosts are looked at elsewhere.

Source:
    Horus (Yeung et al.), Algorithm 1 lines 8 and 14, and Eq. 7-10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.capacity import (
    Resident,
    expected_bytes,
    resident_on,
    samples_per_gpu,
)
from scheduler_service.core.cluster_view.gpu_arrays import LoadClass
from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.predictions.ratio_sums import exceeds, rounded_sum
from scheduler_service.core.records import Gpu, JobRequest, Reason
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from scheduler_service.policies.placement.cheapest_gpus import Costs
from scheduler_service.policies.placement.horus_costs import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenClass:
    """What a load class adds to the price of any job; `ratios` = the utilization of each job there."""

    kind: Kind
    used_bytes: int
    free_bytes: int
    ratios: tuple[float, ...]


class HorusPrices:
    """Prices of one round: what a load costs a job, with the consent of the jobs there or without.

    Args:
        view: The cluster.
        costs: Weights, limits and curves.
        classes: The load classes by number; more may come.
    """

    def __init__(self, view: SchedulingView, costs: CostModel, classes: Sequence[LoadClass]) -> None:
        self._view = view
        self._costs = costs
        self._classes = classes
        self._known_classes: dict[int, _OpenClass] = {}
        self._asked: JobRequest | None = None
        self._residents: dict[Kind, Resident | None] = {}

    def is_open(self, load: LoadClass) -> bool:
        """Return whether a GPU loaded so could take some job."""
        has_slot = len(load.residents) < self._costs.max_jobs_per_gpu
        return has_slot and not load.is_releasing and self._memory_left(load.gpu, load.memory_used_bytes) > 0

    def is_dearer_than_empty(self, load: LoadClass) -> bool:
        """Return whether a GPU loaded so costs every job more than an empty one of its kind."""
        ratio = load.memory_used_bytes / load.gpu.memory_bytes
        return self._costs.is_dearer_than_empty(memory_ratio=ratio, device=load.gpu.device)

    def price(self, request: JobRequest, load: LoadClass) -> tuple[Resident, float] | Reason:
        """Return a job as it would be on a GPU loaded so and what that costs, or why not (lines 8 and 14)."""
        gpu, residents = load.gpu, load.residents
        resident = self.resident(request, gpu)
        if resident is None:
            prediction = self._view.predictions.job(request.key, gpu.device)
            needed_bytes = expected_bytes(request, prediction, samples_per_gpu(request, request.gpus))
            numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
            return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        refusal = sharing_obstacle(resident, residents, gpu, self._view.predictions) if residents else None
        if refusal is not None:
            return refusal
        utilization_ratio = rounded_sum(self._utilization(other, gpu.device) for other in (resident, *residents))
        need_bytes = resident.memory_reserved_bytes
        limit = self._limit_obstacle(load, need_bytes, utilization_ratio)
        if limit is not None:
            return limit
        return resident, self._cost(kind_of(gpu), load.memory_used_bytes + need_bytes, utilization_ratio)

    def put_unasked(self, request: JobRequest, numbers: Iterable[int], values: Costs) -> None:
        """Price classes as if all jobs there consented; those that refuse the job otherwise keep their value.

        Args:
            request: The job.
            numbers: Of the classes, all of which could take some job.
            values: The prices by number.
        """
        own: dict[Kind, tuple[int, float] | None] = {}
        for number in numbers:
            one = self._known_classes.get(number) or self._know(number)
            if one.kind not in own:
                resident = self.resident(request, self._classes[number].gpu)
                own[one.kind] = None
                if resident is not None:
                    own[one.kind] = resident.memory_reserved_bytes, self._utilization(resident, one.kind[0])
            job = own[one.kind]
            if job is not None:
                total_ratio = rounded_sum((job[1], *one.ratios))
                if not one.ratios or not self._exceeds_limits(job[0], one.free_bytes, total_ratio):
                    values[number] = self._cost(one.kind, one.used_bytes + job[0], total_ratio)

    def resident(self, request: JobRequest, gpu: Gpu) -> Resident | None:
        """Return a job as it would be on a kind of GPU; it is asked about many GPUs in a row."""
        kind = kind_of(gpu)
        if self._asked is not request:
            self._asked, self._residents = request, {}
        if kind not in self._residents:
            prediction = self._view.predictions.job(request.key, gpu.device)
            self._residents[kind] = resident_on(request, prediction, samples_per_gpu(request, request.gpus), gpu)
        return self._residents[kind]

    def _know(self, number: int) -> _OpenClass:
        load = self._classes[number]
        known = self._known_classes[number] = _OpenClass(
            kind=kind_of(load.gpu),
            used_bytes=load.memory_used_bytes,
            free_bytes=self._memory_left(load.gpu, load.memory_used_bytes),
            ratios=tuple([self._utilization(one, load.gpu.device) for one in load.residents]),
        )
        return known

    def _cost(self, kind: Kind, used_bytes: int, utilization_ratio: float) -> float:
        device, memory_bytes, *_ = kind
        ratio = used_bytes / memory_bytes
        return self._costs.cost(memory_ratio=ratio, utilization_ratio=utilization_ratio, device=device)

    def _limit_obstacle(self, load: LoadClass, need_bytes: int, utilization_ratio: float) -> Reason | None:
        """The over-commit limits; a job alone may use a whole GPU whatever they are."""
        gpu, free_bytes = load.gpu, self._memory_left(load.gpu, load.memory_used_bytes)
        if not load.residents or not self._exceeds_limits(need_bytes, free_bytes, utilization_ratio):
            return None
        if need_bytes > free_bytes:
            numbers = {"needed_bytes": need_bytes, "free_bytes": free_bytes, "gpu_memory_bytes": gpu.memory_bytes}
            return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))
        ratios = {"utilization_ratio": utilization_ratio, "utilization_max_ratio": self._costs.utilization_max_ratio}
        return Reason(code="UTILIZATION_TOO_HIGH", numbers=ratios, gpu_ids=(gpu.gpu_id,))

    def _exceeds_limits(self, need_bytes: int, free_bytes: int, utilization_ratio: float) -> bool:
        return need_bytes > free_bytes or exceeds(utilization_ratio, self._costs.utilization_max_ratio)

    def _memory_left(self, gpu: Gpu, used_bytes: int) -> int:
        return int(gpu.memory_bytes * self._costs.memory_max_ratio) - used_bytes

    def _utilization(self, resident: Resident, device: str) -> float:
        """A job about which nothing is known is taken to use the whole GPU."""
        prediction = self._view.predictions.job(resident.request.key, device)
        return prediction.utilization_ratio if prediction is not None else 1.0
