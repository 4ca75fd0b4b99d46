"""Elasticity by termination: a job starts as small as it can and grows step by step, with a full restart each time.

What it does:
    Starts jobs in the order of submission with the smallest number of GPUs in their list, each alone on free GPUs. When
    no job waits and GPUs are idle, the one running job grows to the next number of its list whose growth makes the
    last job end soonest, of equal ones the one with the least sum of ends, if it improves anything. No job
    ever shrinks.

Why:
    The baseline for elastic: what finding the right number at once, cheap restarts and shrinking add.

Source:
    The baseline "termination" of Wang et al., "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep
    Learning Training Systems", section V-B, which takes it from Optimus.

Where we differ:
    The paper adds GPUs one by one; here the next number in the job's list, which may be more than one further. Which
    job may grow is left open; here it is decided as under elastic. A job grows only when it has run for `settle_ms`, so
    that it is never stopped while it starts, and only where running jobs can be moved. A job that waits lets no
    other pass.

Cost:
    Sorting the queue and the free GPUs; one look at every running job while GPUs are idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Reshape
from scheduler_service.core.planning.policy_parameters import require_not_negative, require_positive
from scheduler_service.policies.elasticity.reshaping import (
    CompletionTimes,
    ElasticJob,
    growths,
    profiled_jobs,
    smallest,
)
from scheduler_service.policies.ordering.waiting_list import rest_behind
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound
from scheduler_service.policies.placement.free_gpus import free_by_kind_and_node


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationElastic:
    """Smallest count first, then one step up at a time by a full restart."""

    restart_cost_ms: int = field(
        default=60_000, metadata={"description": "termination and start of a job that states no migration_cost, in ms"}
    )
    settle_ms: int = field(default=60_000, metadata={"description": "a job runs so long before it may grow, in ms"})
    interval_ms: int = field(default=60_000, metadata={"description": "how often growth is looked at, in ms"})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(restart_cost_ms=self.restart_cost_ms, settle_ms=self.settle_ms)
        require_positive(interval_ms=self.interval_ms)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return one decision per pending job, and at most one growth."""
        round_ = ExclusiveRound(view)
        decisions: list[Decision] = []
        for position, job in enumerate(view.pending):
            least = smallest(job)
            decision = round_.decide(least)
            decisions.append(decision)
            if isinstance(decision, Hold) and not round_.is_impossible(least.request):
                return [*decisions, *rest_behind(view, position, lambda one: round_.candidates(smallest(one)))]
        if decisions or view.deferred or not view.can_move:
            return decisions
        return self._growth(view)

    def _growth(self, view: SchedulingView) -> list[Reshape]:
        jobs = profiled_jobs(view)
        ends = CompletionTimes({job_id: job.remaining_times_ms[job.count] for job_id, job in jobs.items()})
        free, ledger = free_by_kind_and_node(view), ExclusiveRound(view).ledger
        settled = [job for job in jobs.values() if view.now_ms - job.job.started_at_ms >= self.settle_ms]
        found = [
            growth
            for job in settled
            for growth in growths(
                ledger,
                job,
                _next_count(job),
                free.get(job.kind, {}),
                ends,
                cost_ms=self.restart_cost_ms,
                move_cost_ms=self.restart_cost_ms,
            )
        ]
        best = min(found, key=lambda growth: growth.order, default=None)
        if best is None or best.schedule_objective >= ends.schedule_objective({}):
            return []
        return [best.job.reshape(best.gpu_ids, best.reason)]


def _next_count(job: ElasticJob) -> list[int]:
    return sorted(count for count in job.remaining_times_ms if count > job.count)[:1]
