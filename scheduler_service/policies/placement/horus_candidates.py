"""How GPUs look to one job under Horus: what each costs it, or why it refuses the job.

The reasons of jobs that wait and the candidate tables of `explain` are made of it; rounds find places by load classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.gpu_arrays import LoadClass
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.decisions import Candidate
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.placement.horus_prices import HorusPrices
from scheduler_service.policies.placement.reasons import host_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOption:
    """One GPU that could take the job; `resident` = the job as it would be there."""

    resident: Resident
    cost: float
    node_id: str
    index: int
    gpu_id: str

    @property
    def order(self) -> tuple[float, str, int, str]:
        """Cheapest first; ties are never broken at random."""
        return self.cost, self.node_id, self.index, self.gpu_id


class HorusCandidates:
    """Looks at GPUs with everything that matters.

    Args:
        ledger: The cluster, less what the round has given away.
        prices: Of the round.
        max_jobs_per_gpu: Jobs that may share one GPU.
    """

    def __init__(self, ledger: Ledger, prices: HorusPrices, *, max_jobs_per_gpu: int) -> None:
        self._view, self._ledger, self._prices = ledger.view, ledger, prices
        self._jobs_max = max_jobs_per_gpu

    def option(self, request: JobRequest, entry: GpuView) -> GpuOption | Reason:
        """Look at one GPU with everything that matters, to report why it refuses the job."""
        gpu_id, gpu = entry.gpu.gpu_id, entry.gpu
        obstacle = self._slot_obstacle(request, entry)
        if obstacle is not None:
            return obstacle
        residents, used = self._ledger.residents(gpu_id), self._ledger.memory_used_bytes(gpu_id)
        price = self._prices.price(
            request, LoadClass(gpu=gpu, residents=residents, memory_used_bytes=used, is_releasing=False)
        )
        if isinstance(price, Reason):
            return price
        resident, cost = price
        return GpuOption(resident=resident, cost=cost, node_id=entry.node_id, index=gpu.index, gpu_id=gpu_id)

    def _slot_obstacle(self, request: JobRequest, entry: GpuView) -> Reason | None:
        gpu_id = entry.gpu.gpu_id
        if entry.is_releasing:
            return Reason(code="GPU_RELEASING", gpu_ids=(gpu_id,))
        jobs_on_gpu = self._ledger.job_count(gpu_id)
        if jobs_on_gpu >= self._jobs_max:
            numbers = {"jobs_on_gpu": jobs_on_gpu, "jobs_on_gpu_max": self._jobs_max}
            return Reason(code="TOO_MANY_JOBS", numbers=numbers, job_ids=entry.job_ids, gpu_ids=(gpu_id,))
        node = self._view.nodes[entry.node_id]
        if not self._ledger.host_fits(node, request, gpus_here=1, gpus=request.gpus):
            return host_reason(request)
        return None

    def table(self, request: JobRequest, chosen: Sequence[str]) -> tuple[Candidate, ...]:
        """Return every GPU as it looks to the job, those that could take it first; nothing where no table is wanted."""
        if not self._view.wants_table(request.job_id):
            return ()
        looks = [self.option(request, entry) for entry in self._view.gpus.values()]
        options = sorted((one for one in looks if isinstance(one, GpuOption)), key=lambda option: option.order)
        feasible = [
            Candidate(
                gpu_id=option.gpu_id,
                feasible=True,
                reason=Reason(code="CANDIDATE", numbers={"cost": option.cost}, gpu_ids=(option.gpu_id,)),
                cost=option.cost,
                chosen=option.gpu_id in chosen,
            )
            for option in options
        ]
        refused = zip(self._view.gpus, looks, strict=True)
        rest = [
            Candidate(gpu_id=gpu_id, feasible=False, reason=one) for gpu_id, one in refused if isinstance(one, Reason)
        ]
        return (*feasible, *rest)
