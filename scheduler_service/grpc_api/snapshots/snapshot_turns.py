"""Classes, tenants and arrays in a decision on a snapshot: the same turns as in a running cluster.

What a turn gives away is entered into the view, so that the next one sees what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.cluster_view.foreseen_view import carry_out
from scheduler_service.core.cluster_view.view import PendingJob, Policy, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Start, Stop
from scheduler_service.core.jobs.job_parts import JobTimes
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.planning.placement_limits import (
    ClusterLimits,
    LimitedPlan,
    decide_within_limits,
    narrowed_to,
)
from scheduler_service.core.queue.lanes import PLAIN_LANE
from scheduler_service.core.queue.ready_queue import WaitingJobs
from scheduler_service.core.queue.tenants import TenantRule, TenantRules, TenantUse, UsedTime
from scheduler_service.core.queue.turn_order import Turn
from scheduler_service.core.queue.turns import admit, decide_in_turns, lasting
from scheduler_service.core.reasons.decision_log import DecisionLog
from scheduler_service.core.records import Reason


def tenant_rules(snapshot: scheduling_pb2.Snapshot) -> TenantRules | None:
    """Return the rules for tenants; None = there are none."""
    if not snapshot.tenants:
        return None
    rules = {one.tenant: TenantRule(gpus_max=one.gpus_max, weight=one.weight or 1.0) for one in snapshot.tenants}
    return TenantRules(rules=rules)


def split_by_arrays(view: SchedulingView) -> tuple[SchedulingView, list[Hold]]:
    """Return a view without the tasks that their arrays do not let start yet, and why these wait."""
    if not any(job.request.terms.array_running_max for job in view.pending):
        return view, []
    running = Counter(job.request.terms.array_id for job in view.running.values())
    kept: list[PendingJob] = []
    holds: list[Hold] = []
    for job in sorted(view.pending, key=lambda one: one.request.terms.array_index):
        terms = job.request.terms
        if terms.array_running_max and running[terms.array_id] >= terms.array_running_max:
            reason = Reason(code="ARRAY_LIMIT", numbers={"jobs_max": terms.array_running_max})
            holds.append(Hold(job_id=job.request.job_id, reason=reason))
            continue
        running[terms.array_id] += 1
        kept.append(job)
    if not holds:
        return view, holds
    kept.sort(key=lambda job: (job.submitted_at_ms, job.request.job_id))
    return replace(view, pending=tuple(kept)), holds


def decide_on_snapshot(
    view: SchedulingView, policy: Policy, limits: ClusterLimits, snapshot: scheduling_pb2.Snapshot
) -> LimitedPlan:
    """Return a policy's checked decisions, asked in turns where there are classes or tenants, else once.

    Args:
        view: The cluster.
        policy: Decides about the jobs of one turn.
        limits: Where jobs may run.
        snapshot: Has the rules for tenants.
    """
    rules = tenant_rules(snapshot)
    requests = [*(job.request for job in view.pending), *(job.request for job in view.running.values())]
    if rules is None and not any(one.terms.priority for one in requests):
        return decide_within_limits(policy, view, limits)
    used = {one.tenant: UsedTime(gpu_ms=one.used_gpu_ms, at_ms=snapshot.now_ms) for one in snapshot.tenants}
    return _SnapshotQueue(view, policy, limits, rules, used).decide()


def stop_expired(view: SchedulingView) -> tuple[SchedulingView, list[Stop]]:
    """Return a view in which jobs whose time limit is over are leaving, and the orders to stop them."""
    stops: list[Stop] = []
    for job_id, job in view.running.items():
        ran_ms, limit_ms = job.attained_gpu_ms / len(job.assignments), job.request.terms.time_limit_ms
        if 0 < limit_ms <= ran_ms:
            reason = Reason(code="STOPPING_AT_TIME_LIMIT", numbers={"ran_ms": ran_ms, "time_limit_ms": limit_ms})
            stops.append(Stop(job_id=job_id, reason=reason))
    return carry_out(view, stops, {}, {}), stops


class _AdmittingPolicy:
    """A policy as one turn asks it: what the turn does not allow is left out, and what was given away is counted."""

    def __init__(self, queue: _SnapshotQueue, policy: Policy, turn: Turn) -> None:
        self._queue, self._policy, self._turn = queue, policy, turn
        self.refused: AbstractSet[str] = frozenset()

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return what the turn allows of the policy's decisions."""
        decisions, refused = admit(self._queue, self._turn, self._policy.decide(view), view)
        self.refused = self.refused | refused
        for start in decisions:
            if isinstance(start, Start) and start.job_id in self._queue.jobs:
                gpus = len(start.assignments)
                tenant = self._queue.jobs[start.job_id].request.tenant
                self._queue.tenants.change(tenant, gpus, self._queue.now_ms)
                if self._turn.gpus_max is not None:
                    self._turn = replace(self._turn, gpus_max=self._turn.gpus_max - gpus)
        return decisions


class _SnapshotQueue:
    """The waiting jobs of a snapshot, and the view as turns change it."""

    def __init__(
        self,
        view: SchedulingView,
        policy: Policy,
        limits: ClusterLimits,
        rules: TenantRules | None,
        used: Mapping[str, UsedTime],
    ) -> None:
        self._view, self._policy, self._limits = view, policy, limits
        self.now_ms = view.now_ms
        self.jobs: Mapping[str, JobRecord] = {
            job.request.job_id: JobRecord(
                request=job.request,
                times=JobTimes(submitted_at_ms=job.submitted_at_ms),
                steps_done=job.steps_done,
                attained_gpu_ms=job.attained_gpu_ms,
            )
            for job in view.pending
        }
        self._pending = {job.request.job_id: job for job in view.pending}
        self.waiting = WaitingJobs()
        self.decisions = DecisionLog(self.waiting.lane_of, lambda job_id: self.jobs[job_id].request)
        self.tenants = TenantUse()
        held = Counter[str]()
        for job in view.running.values():
            held[job.request.tenant] += len(job.assignments)
        self.tenants.load(rules, used, held)
        self.waiting.split_by_tenant(rules is not None, ())
        for record in self.jobs.values():
            self.waiting.add(record)
            self.decisions.expect(record.job_id)
        self._plan = LimitedPlan()
        self._kept_gpu_ids: AbstractSet[str] = frozenset()

    @property
    def gpus_free(self) -> int:
        """GPUs that hold nothing."""
        return len(self._view.index.free_gpu_ids)

    def keep_back(self, gpu_ids: Iterable[str]) -> None:
        """Let no job start on these GPUs until others are named."""
        self._kept_gpu_ids = frozenset(gpu_ids)

    def without_jobs(self, gpu_ids: Iterable[str]) -> Sequence[str]:
        """Return those among some GPUs that are usable and that no job holds."""
        gpus = self._view.gpus
        return [gpu_id for gpu_id in gpu_ids if gpu_id in gpus and not gpus[gpu_id].job_ids]

    def decide(self) -> LimitedPlan:
        """Return one decision per waiting job and those about running ones, in execution order.

        GPUs are kept back as in a running cluster: what that follows from, a snapshot states as well.
        """
        decide_in_turns(self, self._take_turn, self._seen, lambda view, job: narrowed_to(view, self._limits, job))
        self._plan.decisions.extend(
            self.decisions[job_id] for job_id in self.jobs if self.waiting.lane_of(job_id) is not None
        )
        return self._plan

    def _seen(self) -> SchedulingView:
        """Return the cluster as it is now, with the jobs that are shown; what is kept back seems to be releasing."""
        pending = tuple(self._pending[job.request.job_id] for job in self.waiting.ready_jobs())
        kept, gpus = self._kept_gpu_ids, self._view.gpus
        if kept:
            gpus = {**gpus} | {name: replace(gpus[name], is_releasing=True) for name in kept if name in gpus}
        return replace(self._view, pending=pending, gpus=gpus, kept_gpu_ids=kept)

    def _take_turn(self, turn: Turn) -> AbstractSet[str]:
        admitting = _AdmittingPolicy(self, self._policy, turn)
        plan = decide_within_limits(admitting, self._seen(), self._limits)
        decisions = lasting(turn, plan.decisions)
        self.decisions.record_round(decisions, self.waiting.shown_lane or PLAIN_LANE)
        self._carry_out(decisions, plan.reservations)
        return admitting.refused

    def _carry_out(self, decisions: Iterable[Decision], reservations: Mapping[str, int]) -> None:
        self._plan.reservations.update(reservations)
        given = [one for one in decisions if not isinstance(one, Hold)]
        self._plan.decisions.extend(given)
        for decision in given:
            if isinstance(decision, Start):
                self.waiting.remove(self.jobs[decision.job_id])
        self._view = carry_out(self._view, given, reservations, self._pending)
