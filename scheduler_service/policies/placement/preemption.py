"""Which jobs to stop so that a shorter one can start: longest remaining time first, as few jobs as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from scheduler_service.core.inventory import Kind, kind_of
from scheduler_service.core.ledger import Ledger, host_share
from scheduler_service.core.records import JobRequest
from scheduler_service.core.step_times import remaining_ms_of
from scheduler_service.core.view import GpuView, HostUse, RunningJob, SchedulingView
from scheduler_service.policies.ordering.shortest_first import has_aged


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPlan:
    """GPUs that can be had, some of them later.

    Attributes:
        gpu_ids: As many as the job needs.
        releasing_gpu_ids: Those among them that another job still leaves.
        victims: The jobs to stop, by id; empty = waiting is enough.
    """

    gpu_ids: tuple[str, ...]
    releasing_gpu_ids: tuple[str, ...]
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """One GPU that the job could have: free (0), being released (1), or held by jobs that may be stopped (2)."""

    price: int
    remaining_ms: float
    entry: GpuView
    holders: tuple[str, ...]

    @property
    def order(self) -> tuple[int, float, str, int, str]:
        return self.price, -self.remaining_ms, self.entry.node_id, self.entry.gpu.index, self.entry.gpu.gpu_id


class PreemptionPlanner:
    """One call of decide: GPUs that are promised to a job are gone for later ones, and no job is stopped twice.

    Args:
        ledger: For the room on the hosts.
        gain_min_ms: A victim must run at least so much longer than the job that takes its GPUs.
        aging_ms: Jobs submitted so long ago are never stopped; 0 = age protects none.
        ranks: Another measure than remaining time by which running jobs make room, the largest first; None = never.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        gain_min_ms: int = 0,
        aging_ms: int = 0,
        ranks: Mapping[str, float | None] | None = None,
    ) -> None:
        self._view: SchedulingView = ledger.view
        self._ledger = ledger
        self._gain_min_ms = gain_min_ms
        self._aging_ms = aging_ms
        self._promised: set[str] = set()
        self._limits_ms: dict[Kind, list[float]] = {}
        self._failed_ms: dict[object, float] = {}
        self._running = dict(self._view.running)
        self._leaving = {job_id for job_id, job in self._running.items() if job.is_stopping}
        self._on_node = _jobs_by_node(self._view)
        self._remaining_times_ms = ranks or {job_id: self._remaining_ms(job) for job_id, job in self._running.items()}
        protected = self._view.protected_job_ids
        if protected:
            measured = self._remaining_times_ms.items()
            self._remaining_times_ms = {name: None if name in protected else value for name, value in measured}

    def promise(self, plan: PreemptionPlan) -> None:
        """Keep these GPUs for the job, and count its victims as leaving."""
        self._failed_ms.clear()
        self._limits_ms.clear()
        self._promised.update(plan.gpu_ids)
        self._leaving.update(plan.victims)

    def find(self, request: JobRequest, kind: Kind, remaining_ms: float) -> PreemptionPlan | None:
        """Return how a job of this length gets GPUs of this kind: the fewest victims, those that run longest.

        Where a job found none, a longer one with the same needs finds none either.
        """
        needs = (kind, request.gpus, request.cpu_cores, request.host_memory_bytes)
        if remaining_ms >= self._failed_ms.get(needs, inf):
            return None
        best = None
        if self._may_suffice(request.gpus, kind, remaining_ms):
            found = (self._first(request, offers) for offers in self._groups(request, kind, remaining_ms))
            best = min((one for one in found if one is not None), key=self._cost, default=None)
        if best is None:
            self._failed_ms[needs] = remaining_ms
        return best

    def _may_suffice(self, gpus: int, kind: Kind, remaining_ms: float) -> bool:
        """Return whether so many GPUs of a kind are free, left, or held by longer jobs; nodes and hosts aside."""
        limits_ms = self._limits_ms.get(kind)
        if limits_ms is None:
            entries = (entry for entry in self._view.gpus.values() if kind_of(entry.gpu) == kind)
            limits_ms = self._limits_ms[kind] = sorted(map(self._limit_ms, entries), reverse=True)
        least_ms = limits_ms[gpus - 1] if len(limits_ms) >= gpus else -inf
        return least_ms == inf or least_ms > remaining_ms

    def _limit_ms(self, entry: GpuView) -> float:
        """Return below which remaining time a job may get a GPU: that of the holder that leaves it first."""
        if entry.gpu.gpu_id in self._promised:
            return -inf
        remaining_times_ms = [
            self._remaining_times_ms[job_id] for job_id in entry.job_ids if job_id not in self._leaving
        ]
        return min((-inf if remaining_ms is None else remaining_ms for remaining_ms in remaining_times_ms), default=inf)

    def _remaining_ms(self, job: RunningJob) -> float | None:
        """Return how long a running job still needs alone, or None where it is unknown or must not be stopped."""
        if has_aged(self._view, job.submitted_at_ms, self._aging_ms):
            return None
        entry = self._view.gpus.get(job.assignments[0].gpu_id)
        if entry is None:
            return None
        return remaining_ms_of(
            job.request,
            self._view.predictions.job(job.request.key, entry.gpu.device),
            steps_done=job.steps_done,
            gpus=len(job.assignments),
            micro_batch_size=job.micro_batch_size,
        )

    def _groups(self, request: JobRequest, kind: Kind, remaining_ms: float) -> Iterable[Sequence[_Offer]]:
        """Yield the GPUs of every node that suffices; where a job may span nodes, all of them last."""
        by_node: dict[str, list[_Offer]] = {}
        for entry in self._view.gpus.values():
            offer = self._offer(entry, remaining_ms) if kind_of(entry.gpu) == kind else None
            if offer is not None:
                by_node.setdefault(entry.node_id, []).append(offer)
        yield from (offers for offers in by_node.values() if len(offers) >= request.gpus)
        if self._view.nodes_per_job_max != 1:
            yield [offer for offers in by_node.values() for offer in offers]

    def _offer(self, entry: GpuView, remaining_ms: float) -> _Offer | None:
        if entry.gpu.gpu_id in self._promised:
            return None
        holders = tuple(job_id for job_id in entry.job_ids if job_id not in self._leaving)
        if not holders:
            if not entry.is_releasing and not entry.job_ids and not self._ledger.is_free(entry.gpu.gpu_id):
                return None
            price = 1 if entry.is_releasing or entry.job_ids else 0
            return _Offer(price=price, remaining_ms=0.0, entry=entry, holders=())
        remaining_times = [self._remaining_times_ms[job_id] for job_id in holders]
        shortest_ms = min((rest for rest in remaining_times if rest is not None), default=0.0)
        if None in remaining_times or shortest_ms <= remaining_ms or shortest_ms < remaining_ms + self._gain_min_ms:
            return None
        return _Offer(price=2, remaining_ms=shortest_ms, entry=entry, holders=holders)

    def _first(self, request: JobRequest, offers: Sequence[_Offer]) -> PreemptionPlan | None:
        """Take the first GPUs in order whose hosts have room once their holders are gone."""
        chosen: list[_Offer] = []
        on_node: dict[str, list[_Offer]] = {}
        nodes_max = self._view.nodes_per_job_max
        for offer in sorted(offers, key=lambda offer: offer.order):
            node_id = offer.entry.node_id
            if node_id not in on_node and nodes_max and len(on_node) >= nodes_max:
                continue
            if self._host_fits(request, node_id, [*on_node.get(node_id, ()), offer]):
                on_node.setdefault(node_id, []).append(offer)
                chosen.append(offer)
            if len(chosen) == request.gpus:
                return self._preemption(chosen)
        return None

    def _preemption(self, chosen: Sequence[_Offer]) -> PreemptionPlan:
        victims = dict.fromkeys(job_id for offer in chosen for job_id in offer.holders)
        return PreemptionPlan(
            gpu_ids=tuple(offer.entry.gpu.gpu_id for offer in chosen),
            releasing_gpu_ids=tuple(offer.entry.gpu.gpu_id for offer in chosen if offer.price == 1),
            victims=tuple(victims),
        )

    def _host_fits(self, request: JobRequest, node_id: str, here: Sequence[_Offer]) -> bool:
        taken = {job_id for offer in here for job_id in offer.holders}
        gone = [job_id for job_id in self._on_node.get(node_id, ()) if job_id in taken or job_id in self._leaving]
        freed = [self._host_part(self._running[job_id], node_id) for job_id in gone]
        room = HostUse(
            cpu_cores=sum(part.cpu_cores for part in freed),
            host_memory_bytes=sum(part.host_memory_bytes for part in freed),
        )
        node = self._view.nodes[node_id]
        return self._ledger.host_fits(node, request, gpus_here=len(here), gpus=request.gpus, freed=room)

    def _host_part(self, job: RunningJob, node_id: str) -> HostUse:
        entries = (self._view.gpus.get(part.gpu_id) for part in job.assignments)
        gpus_here = sum(entry is not None and entry.node_id == node_id for entry in entries)
        return host_share(job.request, gpus_here, len(job.assignments))

    def _cost(self, plan: PreemptionPlan) -> tuple[int, float, int, tuple[str, ...]]:
        remaining_times = [self._remaining_times_ms[job_id] or 0.0 for job_id in plan.victims]
        return len(remaining_times), -sum(remaining_times), len(plan.releasing_gpu_ids), plan.gpu_ids


def _jobs_by_node(view: SchedulingView) -> dict[str, list[str]]:
    """Return the running jobs on every node, in start order."""
    found: dict[str, list[str]] = {}
    for job_id, job in view.running.items():
        entries = (view.gpus.get(part.gpu_id) for part in job.assignments)
        for node_id in dict.fromkeys(entry.node_id for entry in entries if entry is not None):
            found.setdefault(node_id, []).append(job_id)
    return found
