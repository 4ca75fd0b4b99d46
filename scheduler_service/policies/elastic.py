"""Elastic reshaping: a new job may take GPUs from a running one, and idle GPUs make a running job faster.

What it does:
    Takes jobs in the order of submission. For each it weighs every number of GPUs in the job's list; those that are
    missing come from exactly one running job, which goes on with a smaller number of its own list. What makes the last
    job end soonest is done, of equal plans the one with the least sum of ends. When no job waits and GPUs are idle, the
    one running job grows whose growth improves that most, if it improves anything.

Why:
    Training speeds up less and less with every GPU: taking some from a job costs it little and spares a new job its
    wait; giving idle ones away costs one restart.

Source:
    Wang et al., "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning Training Systems",
    Algorithms 1 and 2, section III-C.

Where we differ:
    Plans are compared by (end of the last job, sum of ends, GPUs taken, id); the listings compare the end of the last
    job alone, which ties whenever a third job ends last, and break ties by enumeration order. Algorithm 1's range of
    removals misses valid ones: here a running job may go down to any smaller number of its list. Algorithm 2 always
    grows; here no job grows for nothing. A job without a profile for a number of GPUs cannot have that number, and
    without any profile it starts with the number it asked for and is never reshaped. Where running jobs cannot be
    moved no job makes room or grows. Our agents cannot prepare a job next to the one that makes room, so the new job
    waits for that checkpoint and stop, which is charged to it. A job that waits lets no other pass.

Cost:
    For every job that finds too few free GPUs O(counts x running jobs x their counts), as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Candidate, Decision, Hold
from scheduler_service.core.planning.policy_parameters import require_not_negative
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.elasticity.reshaping import (
    CompletionTimes,
    ElasticJob,
    ScheduleObjective,
    counts_of,
    growths,
    profiled_jobs,
    profiled_remaining_ms,
    smallest,
)
from scheduler_service.policies.ordering.waiting_list import rest_behind
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound
from scheduler_service.policies.placement.free_gpus import (
    choose_free_gpus,
    fits_alone,
    sized,
)

ByNode = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """Reshapes one running job down for a new one, or one up where GPUs are idle."""

    reshape_cost_ms: int = field(
        default=10_000,
        metadata={"description": "checkpoint, stop and start of a job that states no migration_cost, in ms"},
    )
    restart_cost_ms: int = field(
        default=60_000, metadata={"description": "the same where the job takes GPUs of another node too, in ms"}
    )
    start_cost_ms: int = field(default=10_000, metadata={"description": "start of a new job, in ms"})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(
            reshape_cost_ms=self.reshape_cost_ms,
            restart_cost_ms=self.restart_cost_ms,
            start_cost_ms=self.start_cost_ms,
        )

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return reshapes, then one decision per pending job."""
        round_ = ExclusiveRound(view)
        planner = _Planner(view, self, round_)
        decisions: list[Decision] = []
        for position, job in enumerate(view.pending):
            decision = planner.decide(job)
            decisions.append(decision)
            if isinstance(decision, Hold) and not planner.is_impossible(job):
                return [*round_.orders, *decisions, *rest_behind(view, position, planner.candidates)]
        if view.can_move and not view.deferred and not any(isinstance(decision, Hold) for decision in decisions):
            planner.grow()
        return [*round_.orders, *decisions]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One way to start a new job.

    Attributes:
        victim: The job that gives GPUs up; None = none.
        victim_gpu_ids: What it keeps.
    """

    kind: Kind
    gpu_ids: tuple[str, ...]
    schedule_objective: ScheduleObjective
    ends_ms: Mapping[str, int]
    victim: ElasticJob | None = None
    victim_gpu_ids: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[ScheduleObjective, int, str, int, Kind]:
        taken = self.victim.count - len(self.victim_gpu_ids) if self.victim else 0
        return self.schedule_objective, taken, self.victim.job_id if self.victim else "", len(self.gpu_ids), self.kind


class _Planner:
    """Chooses GPUs for new jobs and more for running ones; the round gives them away."""

    def __init__(self, view: SchedulingView, policy: Elastic, round_: ExclusiveRound) -> None:
        self._view = view
        self._policy = policy
        self._round = round_
        self._kinds = view.index.inventory.gpus
        self._coming = _coming_free(view)
        self._elastic = profiled_jobs(view)
        # Every slice of a GPU is a kind by itself.
        self._on_kind: dict[Kind, list[ElasticJob]] = {}
        for job in self._elastic.values():
            self._on_kind.setdefault(job.kind, []).append(job)
        self._times: dict[tuple[str, int], dict[int, int]] = {}
        self._ends = CompletionTimes(
            {job_id: job.remaining_times_ms[job.count] for job_id, job in self._elastic.items()}
        )

    def is_impossible(self, job: PendingJob) -> bool:
        """The job could not start on the empty cluster either, whatever its count."""
        return all(self._round.is_impossible(sized(job.request, count)) for count in counts_of(job.request))

    def candidates(self, job: PendingJob) -> tuple[Candidate, ...]:
        """Return how every GPU looks for the job with the fewest GPUs that it may have."""
        return self._round.candidates(smallest(job))

    def decide(self, job: PendingJob) -> Decision:
        """Start a job, make room for it, or return why it waits."""
        self._times.clear()
        plans = list(self._plans(job))
        if not plans:
            return self._decide_unprofiled(job)
        best = min(plans, key=lambda plan: plan.order)
        self._ends.change(best.ends_ms)
        is_at_once = best.victim is None and all(self._round.ledger.is_free(gpu_id) for gpu_id in best.gpu_ids)
        self._take(best.gpu_ids)
        if is_at_once:
            return self._round.start_at(sized(job.request, len(best.gpu_ids)), best.gpu_ids)
        if best.victim is None:
            releasing = Reason(code="GPU_RELEASING", gpu_ids=best.gpu_ids)
            return Hold(job_id=job.request.job_id, reason=releasing, candidates=self.candidates(job))
        return self._make_room(job, best, best.victim)

    def _decide_unprofiled(self, job: PendingJob) -> Decision:
        """Without a profile the job starts as it asks, alone on free GPUs, or waits."""
        is_profiled = any(self._remaining_times(job, kind) for kind in self._kinds)
        start = None if is_profiled else self._round.start(job)
        if start is not None:
            self._take([part.gpu_id for part in start.assignments])
            return start
        return self._round.hold(smallest(job) if is_profiled else job)

    def _remaining_times(self, job: PendingJob, kind: Kind) -> dict[int, int]:
        """Return how long the present job would run on this kind of GPU, by the counts that it may have there."""
        gpu, request = self._kinds[kind], job.request
        known = self._times.get((gpu.device, gpu.memory_bytes))
        if known is not None:
            return known
        prediction = self._view.predictions.job(request.key, gpu.device)
        remaining_times = {
            count: profiled_remaining_ms(request, prediction, steps_done=job.steps_done, gpus=count)
            for count in counts_of(request)
            if fits_alone(self._view, sized(request, count), gpu)
        }
        found = {count: remaining_ms for count, remaining_ms in remaining_times.items() if remaining_ms is not None}
        self._times[gpu.device, gpu.memory_bytes] = found
        return found

    def _plans(self, job: PendingJob) -> Iterator[_Plan]:
        for kind in self._kinds:
            free, coming = self._round.free_on(kind), self._coming.get(kind, {})
            for count, remaining_ms in self._remaining_times(job, kind).items():
                request, end_ms = sized(job.request, count), remaining_ms + self._policy.start_cost_ms
                gpu_ids = choose_free_gpus(self._round.ledger, request, free)
                if gpu_ids is None and any(coming.values()):
                    gpu_ids = choose_free_gpus(self._round.ledger, request, _joined(free, coming))
                if gpu_ids is not None:
                    ends = {request.job_id: end_ms}
                    yield _Plan(
                        kind=kind, gpu_ids=gpu_ids, schedule_objective=self._ends.schedule_objective(ends), ends_ms=ends
                    )
                elif not any(coming.values()):
                    yield from self._plans_with_victim(request, kind, end_ms)

    def _plans_with_victim(self, request: JobRequest, kind: Kind, end_ms: int) -> Iterator[_Plan]:
        """Yield how the missing GPUs come from one running job (Algorithm 1 lines 22-30)."""
        free = self._round.free_on(kind)
        for victim in self._on_kind.get(kind, ()) if self._view.can_move else ():
            cost_ms = victim.cost_ms(self._policy.reshape_cost_ms)
            for less in (count for count in victim.remaining_times_ms if count < victim.count):
                kept, given = victim.gpu_ids[:less], victim.gpu_ids[less:]
                gpu_ids = choose_free_gpus(self._round.ledger, request, _joined(free, self._by_node(given)))
                if gpu_ids is not None:
                    ends = {
                        request.job_id: end_ms + cost_ms,
                        victim.job_id: victim.remaining_times_ms[less] + cost_ms,
                    }
                    yield _Plan(
                        kind=kind,
                        gpu_ids=gpu_ids,
                        schedule_objective=self._ends.schedule_objective(ends),
                        ends_ms=ends,
                        victim=victim,
                        victim_gpu_ids=kept,
                    )

    def _by_node(self, gpu_ids: Sequence[str]) -> ByNode:
        found: dict[str, list[str]] = {}
        for gpu_id in gpu_ids:
            found.setdefault(self._view.gpus[gpu_id].node_id, []).append(gpu_id)
        return found

    def _make_room(self, job: PendingJob, plan: _Plan, victim: ElasticJob) -> Hold:
        numbers = {"gpus_count": len(plan.victim_gpu_ids), "gpus_before_count": victim.count}
        reason = Reason(code="RESHAPED_DOWN", numbers=numbers, job_ids=(job.request.job_id,))
        self._round.orders.append(victim.reshape(plan.victim_gpu_ids, reason))
        waiting = Reason(
            code="RESHAPES_OTHER",
            numbers={"gpus_needed": len(plan.gpu_ids)},
            job_ids=(victim.job_id,),
            gpu_ids=plan.gpu_ids,
        )
        return Hold(job_id=job.request.job_id, reason=waiting, candidates=self.candidates(job))

    def _take(self, gpu_ids: Sequence[str]) -> None:
        self._round.take(gpu_ids)
        for nodes in self._coming.values():
            for on_node in nodes.values():
                on_node[:] = [gpu_id for gpu_id in on_node if gpu_id not in gpu_ids]

    def grow(self) -> None:
        """Give idle GPUs to the one running job that gains most by them (Algorithm 2)."""
        policy = self._policy
        best = min(
            (
                growth
                for job in self._elastic.values()
                for growth in growths(
                    self._round.ledger,
                    job,
                    [count for count in job.remaining_times_ms if count > job.count],
                    self._round.free_on(job.kind),
                    self._ends,
                    cost_ms=policy.reshape_cost_ms,
                    move_cost_ms=policy.restart_cost_ms,
                )
            ),
            key=lambda growth: growth.order,
            default=None,
        )
        if best is not None and best.schedule_objective < self._ends.schedule_objective({}):
            self._round.orders.append(best.job.reshape(best.gpu_ids, best.reason))


def _coming_free(view: SchedulingView) -> dict[Kind, dict[str, list[str]]]:
    """Return the GPUs that all their jobs are about to leave, by kind and node."""
    staying = {part.gpu_id for job in view.running.values() for part in job.moving_to}
    found: dict[Kind, dict[str, list[str]]] = {}
    for gpu_id in sorted(view.gpus):
        entry = view.gpus[gpu_id]
        holders = [view.running[job_id] for job_id in entry.job_ids]
        if entry.is_releasing and gpu_id not in staying and all(job.is_stopping for job in holders):
            found.setdefault(kind_of(entry.gpu), {}).setdefault(entry.node_id, []).append(gpu_id)
    return found


def _joined(first: ByNode, second: ByNode) -> ByNode:
    return {node_id: [*first.get(node_id, ()), *second.get(node_id, ())] for node_id in sorted({*first, *second})}
