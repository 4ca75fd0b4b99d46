"""Where jobs may run at all: queues, named nodes, device types, and jobs that must not meet on one node.

No policy knows of it. Jobs that may use the same GPUs are decided on together, by the policy, on a view of just these
GPUs; then come the next ones, on what is left. Jobs with the fewest GPUs to choose from go first, since the others find
a place elsewhere. Where any job is limited none is moved: no policy would know where to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from scheduler_service.core.cluster_view.foreseen_view import carry_out
from scheduler_service.core.cluster_view.view import PendingJob, Policy, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Stop, unfolded
from scheduler_service.core.planning.checked_plan import CheckedPlan
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.records import JobRequest, Reason

ROUNDS_MAX: Final = 64
"""Different sets of GPUs that one call decides on; every one costs a round of the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLimits:
    """Where one job may run; everything empty = anywhere.

    Attributes:
        queue: It runs on nodes that serve this queue.
        node_ids: It runs on these nodes.
        excluded_node_ids: It does not run on these nodes.
        devices: It runs on these device types, by name or by words of it (`queue_terms.is_device_named`).
        anti_affinity_group: It runs on no node with a job of the same group.
    """

    queue: str = ""
    node_ids: frozenset[str] = frozenset()
    excluded_node_ids: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    anti_affinity_group: str = ""


NO_LIMITS: Final = PlacementLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLimits:
    """All that limits placements in a cluster.

    Attributes:
        of_jobs: By job id, pending and running; absent = none.
        queues_of_nodes: Queues that a node serves, by node id; absent or empty = all.
    """

    of_jobs: Mapping[str, PlacementLimits] = field(default_factory=dict)
    queues_of_nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, job_id: str) -> PlacementLimits:
        """Return the limits of a job."""
        return self.of_jobs.get(job_id, NO_LIMITS)


@dataclass(frozen=True, slots=True)
class LimitedPlan:
    """What may be carried out.

    Attributes:
        decisions: One per pending job and further ones for running jobs, in execution order.
        reservations: Memory to reserve on each GPU, by job id, for the starts and moves.
    """

    decisions: list[Decision] = field(default_factory=list)
    reservations: dict[str, int] = field(default_factory=dict)


def decide_within_limits(policy: Policy, view: SchedulingView, limits: ClusterLimits) -> LimitedPlan:
    """Return checked decisions that keep all limits."""
    if not limits.of_jobs:
        plan = _checked(policy, view)
        return LimitedPlan(list(unfolded(plan.decisions)), dict(plan.reservations))
    return _LimitedRounds(policy, view, limits).run()


def _checked(policy: Policy, view: SchedulingView) -> CheckedPlan:
    return check_plan(view, {job.request.job_id: job for job in view.pending}, policy.decide(view))


def narrowed_to(view: SchedulingView, limits: ClusterLimits, request: JobRequest) -> SchedulingView:
    """Return a view of the GPUs that a job may use."""
    of_job = limits.of(request.job_id)
    return view if of_job == NO_LIMITS else _on_gpus(view, _allowed_gpu_ids(view, limits, of_job))


def _on_gpus(view: SchedulingView, gpu_ids: AbstractSet[str]) -> SchedulingView:
    gpus = {gpu_id: entry for gpu_id, entry in view.gpus.items() if gpu_id in gpu_ids}
    node_ids = {entry.node_id for entry in gpus.values()}
    nodes = {node_id: node for node_id, node in view.nodes.items() if node_id in node_ids}
    return replace(view, gpus=gpus, nodes=nodes)


def _allowed_gpu_ids(view: SchedulingView, limits: ClusterLimits, of_job: PlacementLimits) -> frozenset[str]:
    refused = _nodes_of_group(view, limits, of_job.anti_affinity_group)
    node_ids = {one for one in view.nodes if one not in refused and _serves(one, limits, of_job)}
    devices = tuple(of_job.devices)
    return frozenset(
        gpu_id
        for gpu_id, entry in view.gpus.items()
        if entry.node_id in node_ids and is_device_named(devices, entry.gpu.device)
    )


def _serves(node_id: str, limits: ClusterLimits, of_job: PlacementLimits) -> bool:
    queues = limits.queues_of_nodes.get(node_id, frozenset())
    return (
        node_id not in of_job.excluded_node_ids
        and (not of_job.node_ids or node_id in of_job.node_ids)
        and (not of_job.queue or not queues or of_job.queue in queues)
    )


def _nodes_of_group(view: SchedulingView, limits: ClusterLimits, group: str) -> set[str]:
    if not group:
        return set()
    members = (job for job_id, job in view.running.items() if limits.of(job_id).anti_affinity_group == group)
    held = {part.gpu_id for job in members for part in job.assignments}
    # Of all GPUs: a job goes on where its GPU takes no other one.
    return {node_id for node_id, node in view.nodes.items() if any(gpu.gpu_id in held for gpu in node.gpus)}


class _LimitedRounds:
    """One round for each set of GPUs that some jobs may use."""

    def __init__(self, policy: Policy, view: SchedulingView, limits: ClusterLimits) -> None:
        self._policy = policy
        self._view = view
        self._limits = limits
        self._rounds_left = ROUNDS_MAX
        self._plan = LimitedPlan()

    def run(self) -> LimitedPlan:
        """Decide about every pending job."""
        for wave in self._waves():
            by_gpus: dict[frozenset[str], list[PendingJob]] = defaultdict(list)
            for limits, jobs in self._by_limits(wave).items():
                if self._rounds_left <= 0:
                    self._hold(jobs, "TOO_MANY_LIMITS", {"gpus_sets_max": ROUNDS_MAX})
                    continue
                gpu_ids = _allowed_gpu_ids(self._view, self._limits, limits)
                if gpu_ids:
                    self._rounds_left -= gpu_ids not in by_gpus
                    by_gpus[gpu_ids] += jobs
                else:
                    self._hold(jobs, "NO_ALLOWED_GPU", {"gpus_in_cluster": len(self._view.gpus)})
            for gpu_ids in sorted(by_gpus, key=lambda ids: (len(ids), min(ids))):
                self._round(gpu_ids, by_gpus[gpu_ids])
        return self._plan

    def _waves(self) -> list[list[PendingJob]]:
        """Return the jobs so that no wave holds two of one anti-affinity group: the second must see the first."""
        seen: dict[str, int] = defaultdict(int)
        waves: dict[int, list[PendingJob]] = defaultdict(list)
        for job in self._view.pending:
            group = self._limits.of(job.request.job_id).anti_affinity_group
            waves[seen[group] if group else 0].append(job)
            seen[group] += 1
        return [waves[number] for number in sorted(waves)]

    def _by_limits(self, wave: Iterable[PendingJob]) -> dict[PlacementLimits, list[PendingJob]]:
        found: dict[PlacementLimits, list[PendingJob]] = defaultdict(list)
        for job in wave:
            found[self._limits.of(job.request.job_id)].append(job)
        return found

    def _hold(self, jobs: Iterable[PendingJob], code: str, numbers: Mapping[str, float]) -> None:
        reason = Reason(code=code, numbers=numbers)
        self._plan.decisions.extend(Hold(job_id=job.request.job_id, reason=reason) for job in jobs)

    def _round(self, gpu_ids: frozenset[str], jobs: Sequence[PendingJob]) -> None:
        """Let the policy decide on some GPUs; running jobs elsewhere are none of its business, and none is moved."""
        view = self._view
        order = {job.request.job_id: job for job in view.pending}
        chosen = {job.request.job_id for job in jobs}
        pending = tuple(job for job_id, job in order.items() if job_id in chosen)
        plan = _checked(self._policy, replace(_on_gpus(view, gpu_ids), pending=pending, can_move=False))
        kept = [one for one in unfolded(plan.decisions) if not isinstance(one, Stop) or self._frees(one, gpu_ids)]
        self._plan.decisions.extend(kept)
        self._plan.reservations.update(plan.reservations)
        self._view = carry_out(view, kept, plan.reservations, order)

    def _frees(self, stop: Stop, gpu_ids: frozenset[str]) -> bool:
        return any(part.gpu_id in gpu_ids for part in self._view.running[stop.job_id].assignments)
