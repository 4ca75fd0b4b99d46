"""Tiresias: the job with the least GPU time so far comes first, in a few queues; one that has had much makes room.

What it does:
    Counts the GPU time of every job (GPUs x time, so a wide job ages faster) and puts it into a queue by limits on that
    time. Lower queues first, inside a queue first come, first served; a job that does not fit lets others pass. Where
    free GPUs do not suffice, jobs that come later in this order are stopped with a checkpoint, the last first and as
    few as possible.

Why:
    Short jobs end soon although it is unknown how long a job will run: no prediction is needed. Queues instead of exact
    times keep two jobs that have had equally much from taking turns.

Source:
    The rules of Tiresias (discretized two-dimensional least attained service, NSDI 2019) as the Pollux artifact runs
    them: petuum/adaptdl, branch osdi21-artifact, simulator/tiresias.py, with its 16 GPU-hours and its optional
    promotion of jobs that have waited long.

Where we differ:
    Inside a lower queue the order is that of submission, since a policy remembers no demotions. A job is stopped only
    if that gives another one its GPUs, and not before it has run `run_min_ms` and `run_per_cost_ratio` times its own
    migration cost, which bounds the time lost to checkpoints. A promoted job goes back to the first queue until its
    waiting is less than `promote_ratio` times its running again. GPUs come free only after the checkpoint. Skew of
    tensor sizes, by which Tiresias spreads some jobs, is not known here: every job gets the fewest nodes.

Cost:
    O(jobs log jobs); every different job that finds no free GPUs looks once at every GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from scheduler_service.core.decisions import Decision, Stop
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.policy_parameters import require_not_negative, require_positive
from scheduler_service.core.records import Reason
from scheduler_service.core.remaining_time_queue import shape_of
from scheduler_service.core.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.policies.ordering.waiting_list import decide_in_order
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound, MadeRoom
from scheduler_service.policies.placement.free_gpus import fits_alone
from scheduler_service.policies.placement.preemption import PreemptionPlan, PreemptionPlanner

SIXTEEN_GPU_HOURS_MS = 57_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """Least attained GPU time first, in queues, with preemption."""

    queues: int = field(default=2, metadata={"description": "number of queues"})
    queue_limit_gpu_ms: int = field(
        default=SIXTEEN_GPU_HOURS_MS,
        metadata={"description": "GPU time at which a job leaves the first queue, in GPU x ms (16 GPU-hours)"},
    )
    queue_growth_ratio: float = field(
        default=10.0, metadata={"description": "how much larger the limit of each further queue is"}
    )
    promote_ratio: float = field(
        default=0.0,
        metadata={"description": "a job that has waited so many times its running goes first; 0 = never"},
    )
    run_min_ms: int = field(
        default=60_000, metadata={"description": "a job that runs is not stopped before that time, in ms"}
    )
    run_per_cost_ratio: float = field(
        default=10.0, metadata={"description": "nor before it has run so many times its own migration cost"}
    )
    interval_ms: int = field(
        default=60_000, metadata={"description": "how often GPU times are compared without any other cause, in ms"}
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(
            promote_ratio=self.promote_ratio,
            run_min_ms=self.run_min_ms,
            run_per_cost_ratio=self.run_per_cost_ratio,
            interval_ms=self.interval_ms,
        )
        require_positive(queues=self.queues, queue_limit_gpu_ms=self.queue_limit_gpu_ms)
        if self.queue_growth_ratio < 1:
            raise PolicyParameterError(f"queue_growth_ratio must be at least 1, but is {self.queue_growth_ratio}")

    @property
    def limits_gpu_ms(self) -> list[float]:
        """GPU time at which a job leaves each queue but the last, ascending."""
        return [self.queue_limit_gpu_ms * self.queue_growth_ratio**place for place in range(self.queues - 1)]

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return the stops, then one decision per pending job in order."""
        if not view.pending:
            return []
        round_ = ExclusiveRound(view, room_maker=partial(_MoreServedMakeRoom, self))
        queue = sorted(view.pending, key=lambda job: self.order(view, job))
        decisions = decide_in_order(queue, round_.decide)
        return [*round_.orders, *decisions]

    def order(self, view: SchedulingView, job: PendingJob | RunningJob) -> tuple[int, int, str]:
        """Return where a job stands among all, first come first."""
        run_ms = job.attained_gpu_ms / job.request.gpus
        waited_ms = view.now_ms - job.submitted_at_ms - run_ms
        is_promoted = self.promote_ratio > 0 and run_ms > 0 and waited_ms >= self.promote_ratio * run_ms
        queue = 0 if is_promoted else bisect_right(self.limits_gpu_ms, job.attained_gpu_ms)
        return queue, job.submitted_at_ms, job.request.job_id

    def is_protected(self, view: SchedulingView, job: RunningJob) -> bool:
        """Return whether a running job has not yet earned back its start."""
        earned_ms = max(self.run_min_ms, self.run_per_cost_ratio * job.request.migration_cost_ms)
        return view.now_ms - job.started_at_ms < earned_ms


class _MoreServedMakeRoom:
    """Running jobs that come later in the order make room, the last first.

    Where a job found no GPUs, an equal one that comes later finds none either, unless a job was stopped since.
    """

    def __init__(self, policy: Tiresias, ledger: Ledger) -> None:
        self._view = view = ledger.view
        self._kinds = view.index.inventory.gpus
        all_jobs: list[PendingJob | RunningJob] = [*view.pending, *view.running.values()]
        all_jobs.sort(key=lambda job: policy.order(view, job))
        self._places = {job.request.job_id: float(place) for place, job in enumerate(all_jobs)}
        ranks = {
            job_id: None if policy.is_protected(view, job) else self._places[job_id]
            for job_id, job in view.running.items()
        }
        self._preemption = PreemptionPlanner(ledger, ranks=ranks)
        self._failed: set[object] = set()

    def make_room(self, job: PendingJob) -> MadeRoom | None:
        """See `RoomMaker.make_room`."""
        shape = shape_of(job.request)
        plan = None if shape in self._failed else self._find(job)
        if plan is None:
            self._failed.add(shape)
            return None
        self._failed.clear()
        self._preemption.promise(plan)
        stops = [self._stop(victim, job) for victim in plan.victims]
        return MadeRoom(gpu_ids=plan.gpu_ids, stops=stops, reason=_waiting(job, plan))

    def may_make_room(self, gpus: int, remaining_ms: float) -> bool:
        """See `RoomMaker.may_make_room`; remaining times are not compared here."""
        return True

    def has_failed(self, shape: object) -> bool:
        """See `RoomMaker.has_failed`."""
        return shape in self._failed

    def _find(self, job: PendingJob) -> PreemptionPlan | None:
        """Look for GPUs of jobs that come later, on any kind that fits."""
        request, preemption_planner = job.request, self._preemption
        for kind, gpu in self._kinds.items():
            if fits_alone(self._view, request, gpu):
                plan = preemption_planner.find(request, kind, self._places[request.job_id])
                if plan is not None:
                    return plan
        return None

    def _stop(self, victim: str, job: PendingJob) -> Stop:
        numbers = {"attained_gpu_ms": self._view.running[victim].attained_gpu_ms}
        reason = Reason(code="STOPPED_FOR_LESS_SERVED", numbers=numbers, job_ids=(job.request.job_id,))
        return Stop(job_id=victim, reason=reason)


def _waiting(job: PendingJob, plan: PreemptionPlan) -> Reason:
    if not plan.victims:
        return Reason(code="GPU_RELEASING", gpu_ids=plan.releasing_gpu_ids)
    numbers = {"attained_gpu_ms": job.attained_gpu_ms, "gpus_needed": len(plan.gpu_ids)}
    return Reason(code="STOPS_MORE_SERVED", numbers=numbers, job_ids=plan.victims, gpu_ids=plan.gpu_ids)
