"""Shortest remaining time first, with preemption: a shorter job takes the GPUs of a longer one.

What it does:
    Takes pending jobs in the order of their predicted remaining time and starts each alone on free GPUs. Where those do
    not suffice, running jobs that need longer are stopped with a checkpoint, the longest first and as few as possible;
    the job starts once they have left. Stopped jobs wait in the queue with what they still have to do.

Why:
    The best order for the mean time to completion when stopping is cheap: a short job never waits behind a long one,
    not even behind one that was there before it.

Source:
    The preemptive form of the baseline SJF of the SJF-BSBF paper, section VI-A2, with L_k of its Algorithm 1; the rule
    itself is the textbook's shortest remaining processing time.

Where we differ:
    The textbook stops for any gain; here a victim must need `preemption_gain_min_ms` longer than the job that takes its
    place, both measured on the same kind of GPU, because a stop and a restart cost time and two jobs must never take
    turns. Where one of the two times is unknown no job is stopped. GPUs come free only after the checkpoint, so the
    shorter job holds until then and the GPUs are kept for it. `aging_ms` bounds waiting: the aged go first, no job
    passes them, and once they run none stops them.

Cost:
    As sjf; every different job that finds no free GPUs looks once at every GPU. Of a long queue only the jobs are
    looked at that may start or have room made for them; the others share one reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import ClassVar

from scheduler_service.core.cluster_view.inventory import Kind
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.remaining_time_queue import Turn, shape_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.decisions import Decision, Stop
from scheduler_service.core.planning.policy_parameters import AGING_DESCRIPTION, require_not_negative
from scheduler_service.core.records import Reason
from scheduler_service.policies.ordering.shortest_first import decide_shortest_first
from scheduler_service.policies.placement import length_queue, long_running
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound, MadeRoom
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.offered_gpus import PreemptionPlan
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from scheduler_service.policies.placement.shape_speeds import shape_speeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf:
    """Shortest remaining time first, one job per GPU, longer running jobs are stopped."""

    decides_only_waiting: ClassVar[bool] = True

    aging_ms: int = field(default=0, metadata={"description": AGING_DESCRIPTION})
    preemption_gain_min_ms: int = field(
        default=60_000, metadata={"description": "a job is stopped only for one that ends this much sooner, in ms"}
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(aging_ms=self.aging_ms, preemption_gain_min_ms=self.preemption_gain_min_ms)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return the stops, then one decision per pending job."""
        if not view.pending:
            return []
        is_grouped = length_queue.is_grouped(view) and not view.explain and not self.aging_ms
        lengths = view.index.lengths if is_grouped else None
        in_columns = lengths is not None or len(view.gpus) >= long_running.GPUS_IN_COLUMNS_MIN
        round_ = ExclusiveRound(view, room_maker=partial(_LongerMakeRoom, self, in_columns=in_columns))
        if lengths is not None:
            decisions = length_queue.decide_long_queue(view, lengths, round_)
            return [*round_.orders, *decisions]
        decisions = decide_shortest_first(view, self.aging_ms, round_.decide, round_.is_impossible, round_.candidates)
        return [*round_.orders, *decisions]


class _LongerMakeRoom:
    """Running jobs that run longest make room for one that ends sooner."""

    def __init__(self, policy: Srtf, ledger: Ledger, *, in_columns: bool) -> None:
        self._view = ledger.view
        self._ledger, self._policy, self._in_columns = ledger, policy, in_columns
        self._speeds = shape_speeds(ledger.view)
        self._is_ordered = not policy.aging_ms
        self._hopeless: set[object] = set()

    @cached_property
    def _preemption(self) -> PreemptionPlanner:
        return PreemptionPlanner(
            self._ledger,
            gain_min_ms=self._policy.preemption_gain_min_ms,
            aging_ms=self._policy.aging_ms,
            long_running=self._long_running if self._in_columns else None,
        )

    @cached_property
    def _long_running(self) -> LongRunning:
        return LongRunning(self._ledger)

    def may_make_room(self, gpus: int, turn: Turn) -> bool:
        """See `RoomMaker.may_make_room`."""
        return turn[0] < inf and turn[0] + self._policy.preemption_gain_min_ms <= self._long_running.reach_ms(gpus)

    def has_failed(self, shape: object) -> bool:
        """See `RoomMaker.has_failed`."""
        return shape in self._hopeless

    def promise_vacant(self, job: PendingJob, shape: object) -> PreemptionPlan | None:
        """See `RoomMaker.promise_vacant`."""
        if shape in self._hopeless or not self._in_columns:
            return None
        lengths = self._lengths(job, shape)
        return self._preemption.promise_vacant(job.request, min(lengths)[1]) if lengths else None

    def make_room(self, job: PendingJob) -> MadeRoom | None:
        """See `RoomMaker.make_room`."""
        # Without aging jobs come by length: where one found no GPUs, no longer one like it does.
        shape = shape_of(job.request)
        found = self._find(job, shape) if not self._is_ordered or shape not in self._hopeless else None
        if found is None:
            self._hopeless.add(shape)
            return None
        remaining_ms, plan = found
        is_opening = self._preemption.promise(plan)
        if is_opening:
            self._hopeless.clear()
        stops = [_stop(victim, job, remaining_ms) for victim in plan.victims]
        reason = _waiting(plan, remaining_ms)
        return MadeRoom(gpu_ids=plan.gpu_ids, stops=stops, reason=reason, is_opening=is_opening)

    def _find(self, job: PendingJob, shape: object) -> tuple[float, PreemptionPlan] | None:
        """Look for GPUs to take, on the kind on which the job is fastest first."""
        for remaining_ms, kind in sorted(self._lengths(job, shape)):
            plan = self._preemption.find(job.request, kind, remaining_ms)
            if plan is not None:
                return remaining_ms, plan
        return None

    def _lengths(self, job: PendingJob, shape: object) -> Sequence[tuple[float, Kind]]:
        """Return how long a job still runs on every kind that it fits, where that is known."""
        request = job.request
        if request.steps_total <= 0:
            return ()
        steps_left = max(request.steps_total - job.steps_done, 0)
        speeds = self._speeds.find(self._view, request, shape)
        return [(steps_left * step_ms, kind) for step_ms, kind in speeds if step_ms is not None]


def _stop(victim: str, job: PendingJob, remaining_ms: float) -> Stop:
    reason = Reason(code="STOPPED_FOR_SHORTER", numbers={"remaining_ms": remaining_ms}, job_ids=(job.request.job_id,))
    return Stop(job_id=victim, reason=reason)


def _waiting(plan: PreemptionPlan, remaining_ms: float) -> Reason:
    if not plan.victims:
        return Reason(code="GPU_RELEASING", gpu_ids=plan.releasing_gpu_ids)
    numbers = {"remaining_ms": remaining_ms, "gpus_needed": len(plan.gpu_ids)}
    return Reason(code="STOPS_LONGER", numbers=numbers, job_ids=plan.victims, gpu_ids=plan.gpu_ids)
