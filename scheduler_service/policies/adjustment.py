"""Which running workers go elsewhere when devices suffer, so that every constraint holds after every move.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 4.4, Algorithm 4, Eq. 18 and 19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scheduler_service.core.capacity import Resident, sharing_obstacle
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.records import Reason
from scheduler_service.core.view import GpuView, RunningJob, SchedulingView
from scheduler_service.policies.opportunistic_memory import demand_of
from scheduler_service.policies.packing_rules import ROUNDING_DIGITS, PackingRules
from scheduler_service.policies.placement import kind_of
from scheduler_service.policies.resulting_interference import slowdowns_on


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMove:
    """One worker goes from one device to another."""

    job_id: str
    source: str
    target: str
    gpu_ids: tuple[str, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A device that could take a worker."""

    entry: GpuView
    is_new: bool
    worst_ratio: float
    free_ratio: float

    @property
    def order(self) -> tuple[bool, float, float, str, int, str]:
        """Devices in use first, then the least resulting interference, then the most memory free."""
        gpu = self.entry.gpu
        return self.is_new, self.worst_ratio, -self.free_ratio, self.entry.node_id, gpu.index, gpu.gpu_id


class Arrangement:
    """Who is where while a plan grows.

    Args:
        view: The cluster.
        rules: The constraints that every move keeps.
    """

    def __init__(self, view: SchedulingView, rules: PackingRules) -> None:
        self._view = view
        self._rules = rules
        self._ledger = Ledger(view)
        self._residents = {gpu_id: list(self._ledger.residents(gpu_id)) for gpu_id in view.gpus}
        self._gpu_ids = {
            job_id: tuple(part.gpu_id for part in sorted(job.assignments, key=lambda part: part.rank))
            for job_id, job in view.running.items()
        }
        self._moved: set[str] = set()
        self._in_order = sorted(view.gpus.values(), key=lambda one: (one.node_id, one.gpu.index, one.gpu.gpu_id))

    def plan(self, cost_of: Callable[[RunningJob], int], cost_max_ms: float) -> list[WorkerMove]:
        """Return moves of the cheapest workers of the worst devices; their costs stay within the limit together.

        Args:
            cost_of: What moving a job costs, in ms.
            cost_max_ms: The limit of Eq. 19, for the whole plan.
        """
        moves: list[WorkerMove] = []
        spent_ms = 0
        for source in self._worst_devices():
            movable = [job for job in self._jobs_on(source) if self._is_movable(job)]
            if len(self._residents[source]) < 2 or not movable:
                continue
            job = min(movable, key=lambda job: (cost_of(job), job.request.job_id))
            move = self._best_move(job, source) if spent_ms + cost_of(job) <= cost_max_ms else None
            if move is not None:
                spent_ms += cost_of(job)
                self._apply(move.job_id, move.source, move.target)
                self._moved.add(move.job_id)
                moves.append(move)
        return moves

    def _worst_devices(self) -> list[str]:
        """Return the half of the devices in use that suffers most (line 1)."""
        in_use = [entry for entry in self._view.gpus.values() if entry.job_ids and not entry.is_releasing]
        in_use.sort(key=lambda entry: (-self._suffered(entry.gpu.gpu_id), entry.node_id, entry.gpu.index))
        return [entry.gpu.gpu_id for entry in in_use[: -(-len(in_use) // 2)]]

    def _suffered(self, gpu_id: str) -> float:
        """Return the interference of a device: what is measured or what is expected, whichever is worse."""
        measured = self._view.gpus[gpu_id].gpu.slowdown_ewma_ratio
        return round(max(measured, self._expected(gpu_id)), ROUNDING_DIGITS)

    def _expected(self, gpu_id: str) -> float:
        """Return Eq. 6 for a device as it is now in the plan."""
        gpu, residents = self._view.gpus[gpu_id].gpu, self._residents[gpu_id]
        return max(slowdowns_on(gpu, residents, self._view.predictions), default=0.0)

    def _jobs_on(self, gpu_id: str) -> list[RunningJob]:
        return [self._view.running[one.request.job_id] for one in self._residents[gpu_id]]

    def _is_movable(self, job: RunningJob) -> bool:
        entries = [self._view.gpus.get(gpu_id) for gpu_id in self._gpu_ids[job.request.job_id]]
        is_settled = all(entry is not None and not entry.is_releasing for entry in entries)
        return is_settled and not job.is_stopping and job.request.job_id not in self._moved

    def _best_move(self, job: RunningJob, source: str) -> WorkerMove | None:
        job_id = job.request.job_id
        found = [self._target(job, source, entry) for entry in self._different_gpus()]
        best = min((one for one in found if one is not None), key=lambda one: one.order, default=None)
        if best is None:
            return None
        target = best.entry.gpu.gpu_id
        gpu_ids = tuple(target if one == source else one for one in self._gpu_ids[job_id])
        numbers = {"slowdown_before_ratio": self._suffered(source), "slowdown_ratio": best.worst_ratio}
        beside = tuple(one.request.job_id for one in self._residents[target])
        reason = Reason(code="MIGRATES_FROM_INTERFERENCE", numbers=numbers, job_ids=beside, gpu_ids=(source, target))
        return WorkerMove(job_id=job_id, source=source, target=target, gpu_ids=gpu_ids, reason=reason)

    def _different_gpus(self) -> Iterator[GpuView]:
        """Yield the GPUs in use, and of the unused ones of a kind on a node the first, which stands for all."""
        seen: set[object] = set()
        for entry in self._in_order:
            if entry.is_releasing:
                continue
            if not self._residents[entry.gpu.gpu_id]:
                place = entry.node_id, kind_of(entry.gpu)
                if place in seen:
                    continue
                seen.add(place)
            yield entry

    def _target(self, job: RunningJob, source: str, entry: GpuView) -> _Target | None:
        """Return a device as a target, or None where a constraint would break or nothing would be lowered."""
        job_id, target = job.request.job_id, entry.gpu.gpu_id
        if entry.is_releasing or target in self._gpu_ids[job_id] or not self._has_place(job, source, entry):
            return None
        others = tuple(self._residents[target])
        if others and entry.gpu.slowdown_ewma_ratio > (self._rules.theta_max or 0.0):
            return None
        before = max(self._suffered(source), round(self._expected(target), ROUNDING_DIGITS))
        self._apply(job_id, source, target)
        worst = round(self._expected(target), ROUNDING_DIGITS)
        is_lower = max(worst, round(self._expected(source), ROUNDING_DIGITS)) < before
        is_valid = is_lower and self._keeps_constraints(source, target)
        self._apply(job_id, target, source)
        free_ratio = self._free_bytes(entry) / entry.gpu.memory_bytes
        return _Target(entry=entry, is_new=not others, worst_ratio=worst, free_ratio=free_ratio) if is_valid else None

    def _has_place(self, job: RunningJob, source: str, entry: GpuView) -> bool:
        """Say whether kind, memory, consent, node and host admit a worker; what the engine's own check would refuse."""
        gpu, view = entry.gpu, self._view
        if kind_of(gpu) != kind_of(view.gpus[source].gpu) or job.memory_reserved_bytes > self._free_bytes(entry):
            return False
        job_id = job.request.job_id
        newcomer = next(one for one in self._residents[source] if one.request.job_id == job_id)
        others = self._residents[gpu.gpu_id]
        if others and sharing_obstacle(newcomer, others, gpu, view.predictions) is not None:
            return False
        gpu_ids = [gpu.gpu_id if one == source else one for one in self._gpu_ids[job_id]]
        node_ids = [view.gpus[one].node_id for one in gpu_ids]
        if view.nodes_per_job_max and len(set(node_ids)) > view.nodes_per_job_max:
            return False
        here, own = node_ids.count(entry.node_id), self._ledger.host_part(job.request, job.assignments, entry.node_id)
        node = view.nodes[entry.node_id]
        return self._ledger.host_fits(node, job.request, gpus_here=here, gpus=len(gpu_ids), freed=own)

    def _free_bytes(self, entry: GpuView) -> int:
        return entry.gpu.memory_bytes - sum(one.memory_reserved_bytes for one in self._residents[entry.gpu.gpu_id])

    def _keeps_constraints(self, source: str, target: str) -> bool:
        """Check Eq. 1-7 on the target and Eq. 8 for every job on either device, as things are after the move."""
        gpu, residents = self._view.gpus[target].gpu, self._residents[target]
        predictions, rules = self._view.predictions, self._rules
        demands = [demand_of(one, gpu, predictions, rules.alpha) for one in residents]
        ids = [one.request.job_id for one in residents]
        if rules.demand_obstacle(target, demands) is not None:
            return False
        if rules.slowdown_obstacle(target, ids, slowdowns_on(gpu, residents, predictions)) is not None:
            return False
        touched = dict.fromkeys([*ids, *(one.request.job_id for one in self._residents[source])])
        return all(rules.balance_obstacle(target, one, self._difference(one)) is None for one in touched)

    def _difference(self, job_id: str) -> float:
        """Return how far the slowdowns of a job's workers lie apart."""
        found = [self._slowdown_of(job_id, gpu_id) for gpu_id in self._gpu_ids[job_id] if gpu_id in self._view.gpus]
        return max(found) - min(found)

    def _slowdown_of(self, job_id: str, gpu_id: str) -> float:
        residents: Sequence[Resident] = self._residents[gpu_id]
        slowdowns = slowdowns_on(self._view.gpus[gpu_id].gpu, residents, self._view.predictions)
        return next(ratio for one, ratio in zip(residents, slowdowns, strict=True) if one.request.job_id == job_id)

    def _apply(self, job_id: str, source: str, target: str) -> None:
        worker = next(one for one in self._residents[source] if one.request.job_id == job_id)
        self._residents[source] = [one for one in self._residents[source] if one is not worker]
        self._residents[target] = [*self._residents[target], worker]
        self._gpu_ids[job_id] = tuple(target if one == source else one for one in self._gpu_ids[job_id])
