"""OJPAP: OJPP that also moves running workers away from devices with a lasting slowdown.

What it does:
    Places jobs as ojpp does. When the moving average of the slowdown measured on a GPU stays above its limit, it looks
    at those GPUs above it that are in the most slowed-down half of those in use. From each the cheapest worker goes
    to the GPU on which the worst slowdown would then be lowest, GPUs in use first, if every limit of ojpp holds there
    and for its job, if that lowers the interference, and if the costs of all moves together stay within a limit.

Why:
    Predictions may be wrong and co-located jobs change; a lasting violation is worth a migration, a short one is not.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC),
    section 4.4, Algorithm 4, Eq. 18 and 19, Fig. 10.

Where we differ:
    Eq. 19 bounds the sum over the whole plan; the listing only looks at single costs. The limit, for which the paper
    gives no value, is a share of the mean remaining time of the running jobs; where none is known no job moves. A
    plan that lowers nothing is empty. A moving job restarts as a whole, at most once per plan, and not in a round that
    starts jobs. A GPU is judged when its jobs have been together for `settle_ms`, since its moving average still covers
    the jobs before; within its limit it is left alone. Where one worker's move would unbalance its job, those
    of its slowed-down workers go together, and where the cheapest job cannot go the next one is tried. Workers move
    away from unpredicted slowdowns to unused GPUs first. What is stated about ojpp holds here too.

Cost:
    That of ojpp; when triggered O(workers of suffering jobs x GPUs) looks, each at the jobs of two GPUs and their other
    workers, but not more than 20,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_service.core.cluster_view.step_times import remaining_ms_of
from scheduler_service.core.cluster_view.view import GpuView, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Start
from scheduler_service.core.planning.policy_parameters import (
    UNSHARE_DESCRIPTION,
    require_not_negative,
    require_positive,
)
from scheduler_service.policies.packing.adjustment import Arrangement
from scheduler_service.policies.packing.packing_orders import by_gregariousness
from scheduler_service.policies.packing.packing_rules import OjppParameters
from scheduler_service.policies.packing.packing_search import search_plan
from scheduler_service.policies.placement.free_gpus import ranked
from scheduler_service.policies.placement.unsharing import with_jobs_apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Ojpap(OjppParameters):
    """OJPP with online adjustment."""

    theta_max: float = field(
        default=0.2, metadata={"description": "largest slowdown on any shared GPU, expected or measured; 0.2 = 20 %"}
    )
    looks_max: int = field(
        default=2_000,
        metadata={"description": "jobs and GPUs that all plans of a round may look at together; 0 = the paper's plan"},
    )
    cost_max_ms: int = field(
        default=0, metadata={"description": "what all moves of a plan may cost, in ms; 0 = by cost_share_ratio"}
    )
    cost_share_ratio: float = field(
        default=0.05, metadata={"description": "the same as a share of the jobs' mean remaining time; 0.05 = 5 %"}
    )
    migration_cost_ms: int = field(
        default=10_000,
        metadata={"description": "cost of moving a job that states none and of whose key none was moved yet, in ms"},
    )
    settle_ms: int = field(
        default=60_000, metadata={"description": "a GPU is judged when its jobs have been together so long, in ms"}
    )
    interval_ms: int = field(default=30_000, metadata={"description": "how often GPUs are judged, in ms"})
    unshare: bool = field(default=True, metadata={"description": UNSHARE_DESCRIPTION})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        _ = self.rules()
        require_positive(interval_ms=self.interval_ms)
        require_not_negative(
            looks_max=self.looks_max,
            cost_max_ms=self.cost_max_ms,
            cost_share_ratio=self.cost_share_ratio,
            migration_cost_ms=self.migration_cost_ms,
            settle_ms=self.settle_ms,
        )

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return migrations, one decision per pending job, then moves of running jobs apart where that is wanted."""
        decisions = self._adjusted(view)
        return with_jobs_apart(view, decisions) if self.unshare else decisions

    def _adjusted(self, view: SchedulingView) -> Sequence[Decision]:
        decisions = search_plan(view, self.rules(), by_gregariousness, self.looks_max)
        if any(isinstance(decision, Start) for decision in decisions):
            return decisions
        if not any(self._suffers(view, entry) for entry in view.gpus.values()):
            return decisions
        arrangement = Arrangement(view, self.rules(), lambda entry: self._is_judged(view, entry))
        plan = arrangement.plan(self._cost_ms, self._cost_limit_ms(view), lambda job: _remaining_ms(view, job))
        moves = [Migrate(job_id=one.job_id, reason=one.reason, assignments=ranked(one.gpu_ids)) for one in plan]
        return [*moves, *decisions]

    def _suffers(self, view: SchedulingView, entry: GpuView) -> bool:
        """The trigger: the moving average is too high."""
        ratio = view.slowdown_ewma_ratios.get(entry.gpu.gpu_id, 0.0)
        return ratio > self.theta_max and self._is_judged(view, entry)

    def _is_judged(self, view: SchedulingView, entry: GpuView) -> bool:
        """The moving average covers the jobs that are there now, and not those before them."""
        if len(entry.job_ids) < 2:
            return False
        changed_at_ms = max(view.running[job_id].neighbours_since_ms for job_id in entry.job_ids)
        return view.now_ms - changed_at_ms >= self.settle_ms

    def _cost_ms(self, job: RunningJob) -> int:
        return job.request.migration_cost_ms or job.move_ms or self.migration_cost_ms

    def _cost_limit_ms(self, view: SchedulingView) -> float:
        """Return the bound of Eq. 19 for this plan."""
        if self.cost_max_ms:
            return float(self.cost_max_ms)
        remaining_times = [
            remaining_ms for job in view.running.values() if (remaining_ms := _remaining_ms(view, job)) is not None
        ]
        return self.cost_share_ratio * sum(remaining_times) / len(remaining_times) if remaining_times else 0.0


def _remaining_ms(view: SchedulingView, job: RunningJob) -> float | None:
    entry = view.gpus.get(job.assignments[0].gpu_id)
    prediction = view.predictions.job(job.request.key, entry.gpu.device) if entry is not None else None
    gpus = len(job.assignments)
    return remaining_ms_of(
        job.request, prediction, steps_done=job.steps_done, gpus=gpus, micro_batch_size=job.micro_batch_size
    )
