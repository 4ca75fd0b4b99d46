"""Which running workers go elsewhere when devices are slowed down, so that every constraint holds where they go.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 4.4, Algorithm 4, Eq. 18 and 19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.inventory import kind_of, may_replace
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import GpuView, RunningJob, SchedulingView
from scheduler_service.core.records import Reason
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from scheduler_service.policies.packing.opportunistic_memory import demand_of
from scheduler_service.policies.packing.packing_rules import ROUNDING_DIGITS, ROUNDING_RATIO, PackingRules
from scheduler_service.policies.packing.resulting_interference import slowdowns_on

LOOKS_MAX = 20_000
"""Devices that one plan looks at as targets; what it has found by then is the plan. About a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMigration:
    """A job goes on elsewhere with one worker or several; `gpu_ids` are all of its devices then, by rank."""

    job_id: str
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
    def order(self) -> tuple[float, float, str, int, str]:
        """The least resulting interference first, then the most memory free."""
        gpu = self.entry.gpu
        return self.worst_ratio, -self.free_ratio, self.entry.node_id, gpu.index, gpu.gpu_id


class Arrangement:
    """The jobs of every device while a plan grows.

    Args:
        view: The cluster.
        rules: The constraints that every move keeps.
        is_judged: Whether the moving average of a device covers the jobs that are there now.
    """

    def __init__(self, view: SchedulingView, rules: PackingRules, is_judged: Callable[[GpuView], bool]) -> None:
        self._view = view
        self._rules = rules
        self._measured = {
            gpu_id: view.slowdown_ewma_ratios.get(gpu_id, 0.0) if is_judged(entry) else 0.0
            for gpu_id, entry in view.gpus.items()
        }
        self._ledger = Ledger(view)
        self._residents = {
            gpu_id: {one.request.job_id: one for one in self._ledger.residents(gpu_id)} for gpu_id in view.gpus
        }
        self._before = {gpu_id: dict(residents) for gpu_id, residents in self._residents.items()}
        self._gpu_ids = {
            job_id: tuple(part.gpu_id for part in sorted(job.assignments, key=lambda part: part.rank))
            for job_id, job in view.running.items()
        }
        self._moved: set[str] = set()
        self._looks = 0
        self._in_order = sorted(view.gpus.values(), key=lambda one: (one.node_id, one.gpu.index, one.gpu.gpu_id))

    def plan(
        self,
        cost_of: Callable[[RunningJob], int],
        cost_max_ms: float,
        remaining_of: Callable[[RunningJob], float | None] = lambda _: None,
    ) -> list[JobMigration]:
        """Return moves of the cheapest workers of the worst devices; their costs stay within the limit together.

        Args:
            cost_of: What moving a job costs, in ms; a job restarts as a whole, with however many workers it moves.
            cost_max_ms: The limit of Eq. 19, for the whole plan.
            remaining_of: How long a job would take alone, in ms; where it is known, only moves that gain more time than
                they cost are made. None = not known.
        """
        moves: list[JobMigration] = []
        left_ms = cost_max_ms
        for source in self._worst_devices():
            if len(self._residents[source]) < 2 or not self._is_violated(source):
                continue
            movable = [job for job in self._jobs_on(source) if self._is_movable(job) and cost_of(job) <= left_ms]
            for job in sorted(movable, key=lambda job: (cost_of(job), job.request.gpus, job.request.job_id)):
                move = self._move(job, source, cost_of(job), remaining_of)
                if move is not None:
                    left_ms -= cost_of(job)
                    self._moved.add(move.job_id)
                    moves.append(move)
                    break
        return moves

    def _worst_devices(self) -> list[str]:
        """Return the half of the devices in use that is slowed down most (line 1)."""
        in_use = [entry for entry in self._view.gpus.values() if entry.job_ids and not entry.is_releasing]
        in_use.sort(key=lambda entry: (-self._suffered(entry.gpu.gpu_id), entry.node_id, entry.gpu.index))
        return [entry.gpu.gpu_id for entry in in_use[: -(-len(in_use) // 2)]]

    def _suffered(self, gpu_id: str) -> float:
        """Return the interference of a device: what is measured or what is expected, whichever is worse."""
        return round(max(self._still_measured(gpu_id), self._expected(gpu_id)), ROUNDING_DIGITS)

    def _still_measured(self, gpu_id: str) -> float:
        """Return what is measured of a device whose jobs are all still there; else 0."""
        return self._measured[gpu_id] if self._residents[gpu_id].keys() == self._before[gpu_id].keys() else 0.0

    def _is_violated(self, gpu_id: str) -> bool:
        limit = self._rules.theta_max
        return limit is None or self._suffered(gpu_id) > limit + ROUNDING_RATIO

    def _expected(self, gpu_id: str) -> float:
        """Return Eq. 6 for a device as it is now in the plan."""
        return max(self._slowdowns(gpu_id), default=0.0)

    def _slowdowns(self, gpu_id: str) -> list[float]:
        gpu, residents = self._view.gpus[gpu_id].gpu, list(self._residents[gpu_id].values())
        return slowdowns_on(gpu, residents, self._view.predictions)

    def _jobs_on(self, gpu_id: str) -> list[RunningJob]:
        return [self._view.running[job_id] for job_id in self._residents[gpu_id]]

    def _is_movable(self, job: RunningJob) -> bool:
        entries = [self._view.gpus.get(gpu_id) for gpu_id in self._gpu_ids[job.request.job_id]]
        is_settled = all(entry is not None and not entry.is_releasing for entry in entries)
        return is_settled and not job.is_stopping and job.request.job_id not in self._moved

    def _move(
        self,
        job: RunningJob,
        source: str,
        cost_ms: int,
        remaining_of: Callable[[RunningJob], float | None],
    ) -> JobMigration | None:
        """Move a job's worker from a device, and others with it where the job would be out of balance without them."""
        suffered = self._suffered(source)
        steps = self._move_one(job, source, suffered) or self._move_several(job, source, suffered)
        if not steps:
            return None
        job_id, targets = job.request.job_id, tuple(steps.values())
        worst = max(round(self._expected(one), ROUNDING_DIGITS) for one in targets)
        co_located = dict.fromkeys(one for gpu_id in targets for one in self._residents[gpu_id])
        gained_ms = self._gained_ms(job, source, suffered, worst, remaining_of)
        if gained_ms is not None and gained_ms <= cost_ms:
            for old, new in reversed(steps.items()):
                self._apply(job_id, new, old)
            return None
        numbers = {"slowdown_before_ratio": suffered, "slowdown_ratio": worst, "cost_ms": float(cost_ms)}
        reason = Reason(
            code="MIGRATES_FROM_INTERFERENCE" if gained_ms is None else "MIGRATES_FOR_GAIN",
            numbers=numbers if gained_ms is None else {**numbers, "gained_ms": gained_ms},
            job_ids=tuple(one for one in co_located if one != job_id),
            gpu_ids=(*steps, *targets),
        )
        return JobMigration(job_id=job_id, gpu_ids=self._gpu_ids[job_id], reason=reason)

    def _gained_ms(
        self,
        job: RunningJob,
        source: str,
        suffered: float,
        worst: float,
        remaining_of: Callable[[RunningJob], float | None],
    ) -> float | None:
        """Return how much sooner the moved job and those it leaves behind end; None = how long they take is unknown."""
        left = self._expected(source)
        known = [(remaining_of(job), worst), *((remaining_of(other), left) for other in self._jobs_on(source))]
        gains = [ms * max(suffered - after, 0.0) for ms, after in known if ms is not None]
        return sum(gains) if len(gains) == len(known) else None

    def _move_one(self, job: RunningJob, source: str, suffered: float) -> dict[str, str]:
        """Move one worker as Algorithm 4 does; return from where to where, empty = no device keeps every constraint."""
        target = self._best_target(job, source, suffered, lambda _: self._unbalanced_at(job.request.job_id) is None)
        if target is None:
            return {}
        self._apply(job.request.job_id, source, target)
        return {source: target}

    def _move_several(self, job: RunningJob, source: str, suffered: float) -> dict[str, str]:
        """Move one worker after another, the most slowed next, until the job is in balance; return all or nothing.

        On its new devices the job may be slowed down by no more than its workers may lie apart, so that it is in
        balance when the last of its slowed-down workers has gone.
        """
        job_id, limit = job.request.job_id, self._rules.theta_diff or 0.0
        steps: dict[str, str] = {}
        here: str | None = source
        while here is not None:
            target = self._best_target(
                job, here, suffered, lambda gpu_id: self._slowdown_of(job_id, gpu_id) <= limit + ROUNDING_RATIO
            )
            if target is None or here in steps.values():
                for old, new in reversed(steps.items()):
                    self._apply(job_id, new, old)
                return {}
            self._apply(job_id, here, target)
            steps[here] = target
            here = self._unbalanced_at(job_id)
        return steps

    def _best_target(
        self, job: RunningJob, source: str, suffered: float, is_balanced: Callable[[str], bool]
    ) -> str | None:
        """Return where a worker should go, or None; `is_balanced(target)` is asked while the worker is there."""
        if self._looks > LOOKS_MAX:
            return None
        different = list(self._different_gpus())
        self._looks += len(different)
        found = [self._target(job, source, entry, suffered, is_balanced) for entry in different]
        # Where predictions have just been wrong, a device without jobs needs none.
        prefers_new = self._is_surprising(source)
        targets = [one for one in found if one is not None]
        best = min(targets, key=lambda one: (one.is_new != prefers_new, *one.order), default=None)
        return None if best is None else best.entry.gpu.gpu_id

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

    def _target(
        self, job: RunningJob, source: str, entry: GpuView, suffered: float, is_balanced: Callable[[str], bool]
    ) -> _Target | None:
        """Return a device as a target, or None where a constraint would break or nothing would be lowered."""
        job_id, target = job.request.job_id, entry.gpu.gpu_id
        if target in self._gpu_ids[job_id] or not self._has_place(job, source, entry):
            return None
        others = self._residents[target]
        if others and (self._measured[target] > (self._rules.theta_max or 0.0)):
            return None
        self._apply(job_id, source, target)
        worst = round(self._expected(target), ROUNDING_DIGITS)
        is_lower = max(worst, round(self._expected(source), ROUNDING_DIGITS)) < suffered
        is_valid = is_lower and self._admits(target, job_id) and is_balanced(target)
        self._apply(job_id, target, source)
        free_ratio = self._free_bytes(entry) / entry.gpu.memory_bytes
        return _Target(entry=entry, is_new=not others, worst_ratio=worst, free_ratio=free_ratio) if is_valid else None

    def _has_place(self, job: RunningJob, source: str, entry: GpuView) -> bool:
        """Return whether kind, memory, consent, node and host admit a worker, as the engine's own check requires."""
        gpu, view = entry.gpu, self._view
        job_id, source_gpu = job.request.job_id, view.gpus[source].gpu
        is_gang = len(self._gpu_ids[job_id]) > 1
        is_alike = kind_of(gpu) == kind_of(source_gpu) if is_gang else may_replace(gpu, source_gpu)
        if not is_alike or job.memory_reserved_bytes > self._free_bytes(entry):
            return False
        incoming_job, others = self._residents[source][job_id], self._holders(gpu.gpu_id)
        if others and sharing_obstacle(incoming_job, others, gpu, view.predictions) is not None:
            return False
        gpu_ids = [gpu.gpu_id if one == source else one for one in self._gpu_ids[job_id]]
        node_ids = [view.gpus[one].node_id for one in gpu_ids]
        if view.nodes_per_job_max and len(set(node_ids)) > view.nodes_per_job_max:
            return False
        here, own = node_ids.count(entry.node_id), self._ledger.host_part(job.request, job.assignments, entry.node_id)
        node = view.nodes[entry.node_id]
        return self._ledger.host_fits(node, job.request, gpus_here=here, gpus=len(gpu_ids), freed=own)

    def _free_bytes(self, entry: GpuView) -> int:
        return entry.gpu.memory_bytes - sum(one.memory_reserved_bytes for one in self._holders(entry.gpu.gpu_id))

    def _holders(self, gpu_id: str) -> list[Resident]:
        """Return the jobs on a device in the plan and those leaving it, which hold what they have until they stop."""
        return list({**self._before[gpu_id], **self._residents[gpu_id]}.values())

    def _admits(self, target: str, incoming_job: str) -> bool:
        """Check Eq. 1-7 on a device, and Eq. 8 for those that were there, as things are after the move.

        Those that stay on the old device are not checked: none of their workers gets slower.
        """
        gpu, residents, rules = self._view.gpus[target].gpu, self._residents[target], self._rules
        demands = [demand_of(one, gpu, self._view.predictions, rules.alpha) for one in residents.values()]
        if rules.demand_obstacle(target, demands) is not None:
            return False
        ids = list(residents)
        if rules.slowdown_obstacle(target, ids, self._slowdowns(target)) is not None:
            return False
        return all(self._is_in_balance(one) for one in ids if one != incoming_job)

    def _is_in_balance(self, job_id: str) -> bool:
        found = [self._slowdown_of(job_id, gpu_id) for gpu_id in self._known_gpus(job_id)]
        return self._rules.balance_obstacle("", job_id, max(found) - min(found)) is None

    def _unbalanced_at(self, mover: str) -> str | None:
        """Return the device that slows down a moving job most, if its workers lie too far apart (Eq. 8).

        On a device that is slowed down more than expected and still unchanged, the measurement counts: it
        shows how slow jobs are and not which of their workers causes it, so that it may be one left behind.
        """
        found = {
            one: self._measured[one] if self._is_surprising(one) else self._slowdown_of(mover, one)
            for one in self._known_gpus(mover)
        }
        if self._rules.balance_obstacle("", mover, max(found.values()) - min(found.values())) is None:
            return None
        return max(found, key=lambda gpu_id: found[gpu_id])

    def _is_surprising(self, gpu_id: str) -> bool:
        """Return whether more is measured of a device than expected."""
        return self._still_measured(gpu_id) > self._expected(gpu_id) + ROUNDING_RATIO

    def _known_gpus(self, job_id: str) -> list[str]:
        return [gpu_id for gpu_id in self._gpu_ids[job_id] if gpu_id in self._view.gpus]

    def _slowdown_of(self, job_id: str, gpu_id: str) -> float:
        return self._slowdowns(gpu_id)[list(self._residents[gpu_id]).index(job_id)]

    def _apply(self, job_id: str, source: str, target: str) -> None:
        self._residents[target][job_id] = self._residents[source].pop(job_id)
        self._gpu_ids[job_id] = tuple(target if one == source else one for one in self._gpu_ids[job_id])
