"""Jobs that share a GPU are moved apart where GPUs are idle and both together gain more than the move costs.

Sharing is worth it while jobs wait; once GPUs fall idle it only costs. A job that moves loses what its move takes, and
every job that it leaves goes on faster, as it does itself, for as long as they would have been together. A gang keeps
the GPUs that it has to itself and changes the others, so that it is alone afterwards.

Source:
    None of the papers separates a pair: SJF-BSBF decides once, and OJPAP moves only above its limit of slowdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from scheduler_service.core.cluster_view.inventory import is_slice, kind_of, may_replace
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.step_times import remaining_by_elapsed_ms, remaining_ms_of
from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Placement, Start
from scheduler_service.core.records import Gpu, Reason
from scheduler_service.core.sharing.colocation_slowdown import expected_slowdowns
from scheduler_service.policies.placement.free_gpus import choose_free_gpus, free_by_kind_and_node, ranked, sized

MOVE_MS = 30_000
"""What moving a job is taken to cost that states nothing and of whose kind none was moved yet."""
GPUS_LOOKED_AT_MAX = 1_000
"""Shared GPUs that one round looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """A job that could leave those with which it shares.

    Attributes:
        job: It.
        shared_gpu_ids: Its GPUs that other jobs hold too.
        gained_ms: How much sooner all of them end together, before the cost of the move.
        cost_ms: Of the move.
    """

    job: RunningJob
    shared_gpu_ids: tuple[str, ...]
    partner_ids: tuple[str, ...]
    gained_ms: float
    cost_ms: float

    @property
    def order(self) -> tuple[float, str]:
        """The largest net gain for each GPU first."""
        return -(self.gained_ms - self.cost_ms) / len(self.shared_gpu_ids), self.job.request.job_id


def with_jobs_apart(view: SchedulingView, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Return a policy's decisions and, after them, the moves of jobs apart onto GPUs that these leave idle.

    Args:
        view: What the policy saw.
        decisions: Its answer.
    """
    has_shared_gpus = len(view.index.free_gpu_ids) + len(view.index.single_job_gpu_ids) < len(view.gpus)
    if not view.can_move or not view.index.free_gpu_ids or not has_shared_gpus:
        return decisions
    return [*decisions, *_Separation(view, decisions).moves()]


class _Separation:
    """The moves of one round.

    Args:
        view: The cluster.
        decisions: What the policy has given away.
    """

    def __init__(self, view: SchedulingView, decisions: Sequence[Decision]) -> None:
        self._view, self._ledger = view, Ledger(view)
        self._touched = {part.gpu_id for one in decisions if isinstance(one, Placement) for part in one.assignments}
        self._decided = {one.job_id for one in decisions if not isinstance(one, Start)}
        self._free = free_by_kind_and_node(view)
        self._take(self._touched)
        self._slowdowns: dict[str, dict[str, float]] = {}

    def moves(self) -> Iterator[Migrate]:
        """Yield the moves, those that gain most for a GPU first; each GPU sees one of its jobs leave."""
        for parting in sorted(self._partings(), key=lambda one: one.order):
            if not self._touched.isdisjoint(parting.shared_gpu_ids):
                continue
            gpu_ids = self._new_gpu_ids(parting)
            if gpu_ids is None:
                continue
            self._take(gpu_ids)
            # Its GPUs close, and those that it leaves are weighed anew when it has gone.
            self._touched.update(gpu_ids, *(self._gpu_ids_of(one) for one in parting.partner_ids))
            yield _move(parting, gpu_ids)

    def _take(self, gpu_ids: Iterable[str]) -> None:
        taken = set(gpu_ids)
        for by_node in self._free.values():
            for node_id in tuple(by_node):
                by_node[node_id] = [one for one in by_node[node_id] if one not in taken]
                if not by_node[node_id]:
                    del by_node[node_id]

    def _partings(self) -> Iterator[Parting]:
        shared = (gpu_id for gpu_id, entry in self._view.gpus.items() if self._may_part(gpu_id, entry.job_ids))
        job_ids = dict.fromkeys(
            job_id for gpu_id in islice(shared, GPUS_LOOKED_AT_MAX) for job_id in self._view.gpus[gpu_id].job_ids
        )
        for job_id in job_ids:
            parting = self._parting(self._view.running[job_id])
            if parting is not None:
                yield parting

    def _may_part(self, gpu_id: str, job_ids: Sequence[str]) -> bool:
        return len(job_ids) > 1 and gpu_id not in self._touched and not self._view.gpus[gpu_id].is_releasing

    def _parting(self, job: RunningJob) -> Parting | None:
        """Return what it would be worth if a job left, or None where it may not or cannot gain."""
        if not self._may_leave(job):
            return None
        job_id, gpu_ids = job.request.job_id, [part.gpu_id for part in job.assignments]
        shared = tuple(gpu_id for gpu_id in gpu_ids if len(self._view.gpus[gpu_id].job_ids) > 1)
        partners = dict.fromkeys(
            other for gpu_id in shared for other in self._view.gpus[gpu_id].job_ids if other != job_id
        )
        device = self._view.gpus[gpu_ids[0]].gpu.device
        gained_ms = self._gained_ms(job, [self._view.running[one] for one in partners], device)
        cost_ms = float(job.request.migration_cost_ms or job.move_ms or MOVE_MS)
        if gained_ms <= cost_ms:
            return None
        return Parting(
            job=job, shared_gpu_ids=shared, partner_ids=tuple(partners), gained_ms=gained_ms, cost_ms=cost_ms
        )

    def _may_leave(self, job: RunningJob) -> bool:
        """Whether a job and its GPUs are settled, and it can go on elsewhere from a checkpoint."""
        entries = [self._view.gpus.get(part.gpu_id) for part in job.assignments]
        is_settled = all(entry is not None and not entry.is_releasing for entry in entries)
        is_left_alone = not job.is_stopping and job.pause is None and job.request.job_id not in self._decided
        return is_settled and is_left_alone and bool(job.has_checkpoint or job.request.migration_cost_ms)

    def _gained_ms(self, job: RunningJob, partners: Sequence[RunningJob], device: str) -> float:
        """Return how much sooner a job and those that it leaves end, in sum.

        While two jobs are together, each does 1 / (1 + slowdown) of what it would do alone. Exact for two jobs.
        """
        own_ratio, own_left_ms = self._slowdown_ratio(job), self._remaining_ms(job, device)
        own_end_ms = own_left_ms * (1 + own_ratio)
        gained_ms, longest_ms = 0.0, 0.0
        for partner in partners:
            ratio, without_ratio = self._slowdown_ratio(partner), self._slowdown_ratio(partner, without=job)
            together_ms = min(own_end_ms, self._remaining_ms(partner, device) * (1 + ratio))
            gained_ms += together_ms * max(1 - (1 + without_ratio) / (1 + ratio), 0.0)
            longest_ms = max(longest_ms, together_ms)
        return gained_ms + longest_ms * own_ratio / (1 + own_ratio)

    def _slowdown_ratio(self, job: RunningJob, without: RunningJob | None = None) -> float:
        """Return how much a job is slowed down, on the slowest of its GPUs; what is not known counts as nothing."""
        job_id = job.request.job_id
        left_out = without.request.job_id if without is not None else ""
        here = (part.gpu_id for part in job.assignments if part.gpu_id in self._view.gpus)
        return max((self._slowdowns_on(gpu_id, left_out).get(job_id, 0.0) for gpu_id in here), default=0.0)

    def _slowdowns_on(self, gpu_id: str, left_out: str) -> Mapping[str, float]:
        there = self._ledger.residents(gpu_id)
        if len(there) < 2:
            return {}
        name = f"{gpu_id} {left_out}" if left_out in self._view.gpus[gpu_id].job_ids else gpu_id
        if name not in self._slowdowns:
            staying = [one for one in there if one.request.job_id != left_out]
            found = expected_slowdowns(staying, self._view.gpus[gpu_id].gpu, self._view.predictions)
            self._slowdowns[name] = {one.request.job_id: slowdown.ratio for one, slowdown in found}
        return self._slowdowns[name]

    def _remaining_ms(self, job: RunningJob, device: str) -> float:
        """Return how long a job would still run alone; one of unknown length as long again as it has run."""
        known_ms = remaining_ms_of(
            job.request,
            self._view.predictions.job(job.request.key, device),
            steps_done=job.steps_done,
            gpus=len(job.assignments),
            micro_batch_size=job.micro_batch_size,
        )
        return remaining_by_elapsed_ms(self._view.now_ms - job.started_at_ms) if known_ms is None else known_ms

    def _gpu_ids_of(self, job_id: str) -> Iterator[str]:
        return (part.gpu_id for part in self._view.running[job_id].assignments)

    def _new_gpu_ids(self, parting: Parting) -> tuple[str, ...] | None:
        """Return all GPUs of a job by rank, idle ones in place of the shared ones; None = none suffice.

        A gang goes to no node on which it is not yet: its ranks would be further apart than they were.
        """
        job, gpus = parting.job, self._view.gpus
        own_nodes = {gpus[part.gpu_id].node_id for part in job.assignments}
        free = self._free_like(gpus[parting.shared_gpu_ids[0]].gpu)
        wanted = sized(job.request, len(parting.shared_gpu_ids))
        at_home = {node_id: here for node_id, here in free.items() if node_id in own_nodes}
        found = choose_free_gpus(self._ledger, wanted, at_home)
        if found is None and len(parting.shared_gpu_ids) == len(job.assignments):
            found = self._elsewhere(parting, free, nodes_max=len(own_nodes))
        if found is None:
            return None
        instead = dict(zip(parting.shared_gpu_ids, found, strict=True))
        in_order = sorted(job.assignments, key=lambda part: part.rank)
        return tuple(instead.get(part.gpu_id, part.gpu_id) for part in in_order)

    def _free_like(self, gpu: Gpu) -> Mapping[str, Sequence[str]]:
        """Return the idle GPUs to which a job may move from one, by node; each slice is a kind by itself."""
        if not is_slice(gpu):
            return self._free.get(kind_of(gpu), {})
        found: dict[str, list[str]] = {}
        for by_node in self._free.values():
            for node_id, here in by_node.items():
                found.setdefault(node_id, []).extend(one for one in here if may_replace(self._view.gpus[one].gpu, gpu))
        return {node_id: sorted(here) for node_id, here in found.items() if here}

    def _elsewhere(
        self, parting: Parting, free: Mapping[str, Sequence[str]], *, nodes_max: int
    ) -> tuple[str, ...] | None:
        """Return idle GPUs on any nodes for a job all of whose GPUs are shared, on no more nodes than now."""
        found = choose_free_gpus(self._ledger, parting.job.request, free)
        if found is None or len({self._view.gpus[gpu_id].node_id for gpu_id in found}) > nodes_max:
            return None
        return found


def _move(parting: Parting, gpu_ids: Sequence[str]) -> Migrate:
    numbers = {"gained_ms": parting.gained_ms - parting.cost_ms, "cost_ms": parting.cost_ms}
    reason = Reason(code="MOVES_APART", numbers=numbers, job_ids=parting.partner_ids, gpu_ids=tuple(gpu_ids))
    return Migrate(job_id=parting.job.request.job_id, reason=reason, assignments=ranked(gpu_ids))
