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
    O(jobs log jobs); every different job that finds no free GPUs looks once at every GPU. Of a long queue only the jobs
    are looked at that may start or have room made for them; the others share one reason.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from math import ceil, inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import ServiceQueue, Turn, shape_of
from scheduler_service.core.cluster_view.remaining_times import ServiceTimes
from scheduler_service.core.cluster_view.service_measures import LEVEL_MS, KeptServiceMeasures, ServiceRules
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Stop
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.planning.policy_parameters import require_not_negative, require_positive
from scheduler_service.core.records import Reason
from scheduler_service.policies.ordering.waiting_list import decide_in_order
from scheduler_service.policies.placement import length_queue, long_running
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound, MadeRoom
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.offered_gpus import PreemptionPlan
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from scheduler_service.policies.placement.shape_speeds import shape_speeds

SIXTEEN_GPU_HOURS_MS = 57_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """Least attained GPU time first, in queues, with preemption."""

    decides_only_waiting: ClassVar[bool] = True

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
    def limits_gpu_ms(self) -> tuple[float, ...]:
        """GPU time at which a job leaves each queue but the last, ascending."""
        return _limits_gpu_ms(self.queues, self.queue_limit_gpu_ms, self.queue_growth_ratio)

    @property
    def rules(self) -> ServiceRules:
        """What tells which running jobs make room for which."""
        return ServiceRules(self.limits_gpu_ms, self.run_min_ms, self.run_per_cost_ratio)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return the stops, then one decision per pending job in order."""
        if not view.pending:
            return []
        is_grouped = length_queue.is_grouped(view) and not view.explain and not self.promote_ratio
        queue = view.index.by_service(self.limits_gpu_ms) if is_grouped else None
        round_ = ExclusiveRound(view, room_maker=partial(_MoreServedMakeRoom, self, queue=queue))
        if queue is not None:
            decisions = length_queue.decide_long_queue(view, queue, round_)
        else:
            decisions = decide_in_order(sorted(view.pending, key=lambda job: self.order(view, job)), round_.decide)
        return [*round_.orders, *decisions]

    def next_look_ms(self, view: SchedulingView) -> int | None:
        """Return when the next running job leaves its queue or has earned back its start; see `Policy`.

        What is kept tells that without those that come before every waiting job even then: they make room for none,
        and which of the others is stopped first matters only once a waiting job has room made for it that had none.
        """
        if not view.pending:
            return None
        if self.promote_ratio or view.index.counted_arrays.jobs_on.max(initial=0) > 1:
            return view.now_ms
        kept, queue = view.index.service_measures(self.rules), view.index.by_service(self.limits_gpu_ms)
        if kept is not None and queue is not None:
            first_ms = kept.next_change_ms(min([_measure_of(heads[0]) for heads in queue.heads.values()]))
            return int(first_ms) if first_ms < inf else None
        times, limits = view.index.service_times, _limits_in_column(self.limits_gpu_ms)
        left_gpu_ms = limits[limits.searchsorted(times.attained_gpu_ms, side="right")] - times.attained_gpu_ms
        leaves_ms = view.now_ms + np.divide(
            left_gpu_ms, times.gpus, out=np.full(len(times.gpus), inf), where=times.gpus > 0
        )
        earned_ms = times.started_at_ms + _earned_ms(self, times)
        earned_ms = np.where(earned_ms > view.now_ms, earned_ms, inf)
        is_alone = view.index.counted_arrays.jobs_on == 1
        first_ms = float(np.minimum(leaves_ms, earned_ms).min(initial=inf, where=is_alone))
        return ceil(first_ms) if first_ms < inf else None

    def settles(self, view: SchedulingView) -> bool:
        """Return whether a round does all that can be done until the next fact or look; see `Policy`.

        It does where a GPU is as good as any other for every job that waits, so that only numbers of GPUs matter; while
        jobs share GPUs `next_look_ms` has it asked at every multiple. Let a round go through the waiting jobs in order,
        and let the next one follow at once, once its stops and starts are carried out:

        - A job that found too few GPUs finds too few again. It had those that are vacant (free, or being released) and
          those of later jobs that may be stopped, less what earlier jobs took. Who was stopped for a later job comes
          later still, so its GPUs had counted as held and count as vacant now; who was stopped for an earlier one had
          left them before its turn; who started took free GPUs, and is protected or comes later as it came before.
        - A job for which room was made finds vacant as many GPUs as it was promised, and stops no other one: what was
          promised and what is vacant beyond it are as many as before, and the jobs before it take no more of it.
        - None of them starts that did not: of free GPUs there are no more than at its turn, since who waits for some to
          be released takes as many free ones as there are.

        Until the next fact only the numbers of running jobs change, which `next_look_ms` looks after.
        """
        if not view.pending:
            return True
        queue = view.index.by_service(self.limits_gpu_ms)
        if queue is None or self.promote_ratio or view.nodes_per_job_max or len(view.index.inventory.gpus) != 1:
            return False
        if view.protected_job_ids or view.kept_gpu_ids:
            return False
        requests = [group.request for group in queue.all_groups()]
        return not any(request.cpu_cores or request.host_memory_bytes for request in requests)

    def heeds_report(self, *, lost_ratio: float) -> bool:
        """Return False: GPU time passes at a known pace, whatever is reported; see `Policy`."""
        return False

    def order(self, view: SchedulingView, job: PendingJob | RunningJob) -> tuple[int, int, str]:
        """Return where a job stands among all, first come first."""
        run_ms = job.attained_gpu_ms / job.request.gpus
        waited_ms = view.now_ms - job.submitted_at_ms - run_ms
        is_promoted = self.promote_ratio > 0 and run_ms > 0 and waited_ms >= self.promote_ratio * run_ms
        queue = 0 if is_promoted else bisect_right(self.limits_gpu_ms, job.attained_gpu_ms)
        return queue, job.submitted_at_ms, job.request.job_id

    def is_protected(self, view: SchedulingView, job: RunningJob) -> bool:
        """Return whether a running job has not yet earned back its start."""
        return view.now_ms - job.started_at_ms < self.rules.earned_ms(job.request.migration_cost_ms)


class _Places:
    """Where jobs stand in the order of all that run or wait, as numbers from 0.

    Args:
        policy: Knows the order.
        view: The jobs.
        queue: The waiting ones in order; None = they are to be sorted.
        is_kept: What is kept of running jobs may be read, where it is; otherwise they are sorted.
    """

    def __init__(self, policy: Tiresias, view: SchedulingView, queue: ServiceQueue | None, *, is_kept: bool) -> None:
        self._policy, self._view, self._queue, self._is_kept = policy, view, queue, is_kept

    def of(self, job: PendingJob) -> float:
        """Return the place of a waiting job."""
        return self._place(self._policy.order(self._view, job))

    def _place(self, order: Turn) -> float:
        waiting = self._queue.jobs_before(order) if self._queue is not None else bisect_left(self._waiting, order)
        return float(waiting + self._running_before(order))

    def of_victim(self, job_id: str) -> float | None:
        """Return the place of a running job; None = it makes no room yet."""
        kept = self.kept
        if kept is not None:  # which knows of a job what is asked here without its record
            return None if kept.is_protected(job_id, self._view.now_ms) else self._place(kept.turn_of(job_id))
        is_protected = self._policy.is_protected(self._view, self._view.index.reported[job_id])
        return None if is_protected else self._place(self._policy.order(self._view, self._view.running[job_id]))

    @cached_property
    def kept(self) -> KeptServiceMeasures | None:
        """What is kept of all running jobs; None = that is to be found."""
        return self._view.index.service_measures(self._policy.rules) if self._is_kept else None

    def _running_before(self, order: Turn) -> int:
        if self.kept is not None:
            return self.kept.jobs_before(order)
        return bisect_left(self._running, order)

    @cached_property
    def _running(self) -> list[Turn]:
        return sorted(self._policy.order(self._view, job) for job in self._view.running.values())

    @cached_property
    def _waiting(self) -> list[Turn]:
        return sorted(self._policy.order(self._view, job) for job in self._view.pending)


class _MoreServedMakeRoom:
    """Running jobs that come later in the order make room, the last first.

    Where a job found no GPUs, an equal one that comes later finds none either, unless a job was stopped since.
    """

    def __init__(self, policy: Tiresias, ledger: Ledger, *, queue: ServiceQueue | None) -> None:
        self._policy, self._ledger = policy, ledger
        self._view = view = ledger.view
        self._speeds = shape_speeds(view)
        self._in_columns = queue is not None or (
            len(view.gpus) >= long_running.GPUS_IN_COLUMNS_MIN and not policy.promote_ratio
        )
        self._places = _Places(policy, view, queue, is_kept=self._in_columns)
        self._failed: set[object] = set()

    @cached_property
    def _preemption(self) -> PreemptionPlanner:
        late = self._late if self._in_columns else None
        # Not a method of this object, which would be in a ring with it: rounds would be kept until a collection.
        return PreemptionPlanner(self._ledger, rank_of=self._places.of_victim, long_running=late)

    @cached_property
    def _late(self) -> LongRunning:
        if self._places.kept is not None:
            return LongRunning(self._ledger, self._places.kept)
        times, limits = self._view.index.service_times, _limits_in_column(self._policy.limits_gpu_ms)
        is_protected = self._view.now_ms - times.started_at_ms < _earned_ms(self._policy, times)
        levels = limits.searchsorted(times.attained_gpu_ms, side="right")
        return LongRunning(self._ledger, np.where(is_protected, -inf, levels * LEVEL_MS + times.submitted_at_ms))

    def make_room(self, job: PendingJob) -> MadeRoom | None:
        """See `RoomMaker.make_room`."""
        shape = shape_of(job.request)
        plan = None if shape in self._failed else self._find(job, shape)
        if plan is None:
            self._failed.add(shape)
            return None
        is_opening = self._preemption.promise(plan)
        if is_opening:
            self._failed.clear()
        stops = [self._stop(victim, job) for victim in plan.victims]
        return MadeRoom(gpu_ids=plan.gpu_ids, stops=stops, reason=_waiting(job, plan), is_opening=is_opening)

    def promise_vacant(self, job: PendingJob, shape: object) -> PreemptionPlan | None:
        """See `RoomMaker.promise_vacant`."""
        if shape in self._failed or not self._in_columns:
            return None
        speeds = self._speeds.find(self._view, job.request, shape)
        return self._preemption.promise_vacant(job.request, speeds[0][1]) if speeds else None

    def may_make_room(self, gpus: int, turn: Turn) -> bool:
        """See `RoomMaker.may_make_room`."""
        return _measure_of(turn) <= self._late.reach_ms(gpus)

    def has_failed(self, shape: object) -> bool:
        """See `RoomMaker.has_failed`."""
        return shape in self._failed

    def _find(self, job: PendingJob, shape: object) -> PreemptionPlan | None:
        """Look for GPUs of jobs that come later, on any kind that fits."""
        request, preemption_planner = job.request, self._preemption
        measure = _measure_of(self._policy.order(self._view, job))
        if self._in_columns and measure > self._late.reach_ms(request.gpus):
            return None
        # Where GPUs are vacant, as for most that were told before, no other job's place is compared with this one's.
        place = partial(self._places.of, job)
        for _, kind in self._speeds.find(self._view, request, shape):
            plan = preemption_planner.find(request, kind, place, measure=measure)
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


def _measure_of(place: Turn) -> float:
    """Return queue and submission as one number."""
    level, submitted_at_ms, _ = place
    return level * LEVEL_MS + submitted_at_ms


@lru_cache(maxsize=64)
def _limits_gpu_ms(queues: int, first_gpu_ms: int, growth_ratio: float) -> tuple[float, ...]:
    return tuple(first_gpu_ms * growth_ratio**place for place in range(queues - 1))


@lru_cache(maxsize=64)
def _limits_in_column(limits_gpu_ms: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the same, and after the last one infinity."""
    return np.array([*limits_gpu_ms, inf])


def _earned_ms(policy: Tiresias, times: ServiceTimes) -> NDArray[np.float64]:
    """Return by position how long the one job on each GPU has to run before it may be stopped."""
    found: NDArray[np.float64] = np.maximum(policy.run_min_ms, policy.run_per_cost_ratio * times.migration_cost_ms)
    return found
