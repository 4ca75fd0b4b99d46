"""Classes, tenants, chosen devices and arrays in a decision on a snapshot: the same turns as in a running cluster.

What a turn gives away is entered into the view, so that the next one sees what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.cluster_index import FreshIndex
from scheduler_service.core.decision_log import DecisionLog
from scheduler_service.core.decisions import Decision, Hold, Migrate, Placement, Reshape, Start, Stop, unfolded
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.lanes import PLAIN_LANE
from scheduler_service.core.ledger import host_share
from scheduler_service.core.placement_limits import ClusterLimits, LimitedPlan, decide_within_limits
from scheduler_service.core.plan_check import CheckedPlan, check_plan
from scheduler_service.core.ready_queue import WaitingJobs
from scheduler_service.core.records import Assignment, Reason
from scheduler_service.core.tenants import TenantRule, TenantRules, TenantUse, UsedTime
from scheduler_service.core.turns import Turn, admit, decide_in_turns, seen_in_lane
from scheduler_service.core.view import HostUse, PendingJob, Policy, RunningJob, SchedulingView


def tenant_rules(snapshot: scheduling_pb2.Snapshot) -> TenantRules | None:
    """Return the rules for tenants; None = there are none."""
    if not snapshot.tenants:
        return None
    rules = {one.tenant: TenantRule(gpus_max=one.gpus_max, weight=one.weight or 1.0) for one in snapshot.tenants}
    return TenantRules(rules=rules)


def split_by_arrays(view: SchedulingView) -> tuple[SchedulingView, list[Hold]]:
    """Return a view without the tasks that their arrays do not let start yet, and why these wait."""
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
    return replace(view, pending=tuple(kept), index=FreshIndex()), holds


def decide_on_snapshot(
    view: SchedulingView, policy: Policy, snapshot: scheduling_pb2.Snapshot, limits: ClusterLimits
) -> LimitedPlan:
    """Ask a policy in turns, or once where there is nothing to take turns about; return its checked decisions."""
    rules = tenant_rules(snapshot)
    requests = [*(job.request for job in view.pending), *(job.request for job in view.running.values())]
    if rules is None and not any(one.terms.priority for one in requests):
        return decide_within_limits(policy, view, limits)
    used = {one.tenant: UsedTime(gpu_ms=one.used_gpu_ms, at_ms=snapshot.now_ms) for one in snapshot.tenants}
    return _SnapshotQueue(view, policy, rules, used, limits).decide()


class _SnapshotQueue:
    """The waiting jobs of a snapshot, and the view as turns change it."""

    def __init__(
        self,
        view: SchedulingView,
        policy: Policy,
        rules: TenantRules | None,
        used: Mapping[str, UsedTime],
        limits: ClusterLimits,
    ) -> None:
        self._view, self._policy, self._limits = view, policy, limits
        self.now_ms = view.now_ms
        self.jobs: Mapping[str, JobRecord] = {
            job.request.job_id: JobRecord(
                request=job.request,
                submitted_at_ms=job.submitted_at_ms,
                steps_done=job.steps_done,
                attained_gpu_ms=job.attained_gpu_ms,
            )
            for job in view.pending
        }
        self._pending = {job.request.job_id: job for job in view.pending}
        self.waiting = WaitingJobs()
        self.decisions = DecisionLog(self.waiting.lane_of)
        self.tenants = TenantUse()
        held = Counter[str]()
        for job in view.running.values():
            held[job.request.tenant] += len(job.assignments)
        self.tenants.load(rules, used, held)
        self.waiting.split_by_tenant(rules is not None, ())
        for record in self.jobs.values():
            self.waiting.add(record)
            self.decisions.expect(record.job_id)
        self._orders: list[Decision] = []
        self._reservations: dict[str, int] = {}

    @property
    def gpus_free(self) -> int:
        """GPUs that hold nothing."""
        return len(self._view.index.free_gpu_ids)

    def decide(self) -> LimitedPlan:
        """Return one decision per waiting job and those about running ones, in execution order."""
        decide_in_turns(self, self._take_turn)
        holds = [self.decisions[job_id] for job_id in self.jobs if self.waiting.lane_of(job_id) is not None]
        return LimitedPlan([*self._orders, *holds], self._reservations)

    def _take_turn(self, turn: Turn) -> AbstractSet[str]:
        pending = tuple(self._pending[job.request.job_id] for job in self.waiting.ready_jobs())
        view = seen_in_lane(replace(self._view, pending=pending, index=FreshIndex()), turn.lane)
        limited = decide_within_limits(self._policy, view, self._limits)
        decisions, refused = admit(self, turn, limited.decisions, view.running)
        plan = check_plan(view, {job.request.job_id: job for job in pending}, decisions)
        self.decisions.record_round(plan.decisions, self.waiting.shown_lane or PLAIN_LANE)
        self._carry_out(plan)
        return refused

    def _carry_out(self, plan: CheckedPlan) -> None:
        running = dict(self._view.running)
        self._reservations.update(plan.reservations)
        for decision in unfolded(plan.decisions):
            if isinstance(decision, Hold):
                continue
            self._orders.append(decision)
            if isinstance(decision, Start):
                job = self.jobs[decision.job_id]
                running[decision.job_id] = _started(job, decision, plan.reservations[decision.job_id], self.now_ms)
                self.waiting.remove(job)
                self.tenants.change(job.request.tenant, len(decision.assignments), self.now_ms)
            elif isinstance(decision, Stop):
                running[decision.job_id] = replace(running[decision.job_id], is_stopping=True)
            elif isinstance(decision, Migrate | Reshape):
                running[decision.job_id] = _moved(running[decision.job_id], decision, plan)
        self._view = _occupied(self._view, running)


def _started(job: JobRecord, start: Start, reserved_bytes: int, now_ms: int) -> RunningJob:
    return RunningJob(
        request=job.request,
        attempt=1,
        assignments=start.assignments,
        micro_batch_size=start.micro_batch_size,
        accumulation_steps=start.accumulation_steps,
        submitted_at_ms=job.submitted_at_ms,
        started_at_ms=now_ms,
        steps_done=job.steps_done,
        attained_gpu_ms=job.attained_gpu_ms,
        memory_reserved_bytes=reserved_bytes,
        accrued_at_ms=now_ms,
        is_on_trial=bool(start.trial_with),
    )


def _moved(job: RunningJob, move: Placement, plan: CheckedPlan) -> RunningJob:
    reserved_bytes = max(job.memory_reserved_bytes, plan.reservations[move.job_id])
    return replace(job, is_stopping=True, moving_to=move.assignments, memory_reserved_bytes=reserved_bytes)


def _occupied(view: SchedulingView, running: Mapping[str, RunningJob]) -> SchedulingView:
    """Return a view with these jobs on its GPUs and hosts."""
    holders: dict[str, list[RunningJob]] = {}
    for job in running.values():
        for gpu_id in {part.gpu_id for part in (*job.assignments, *job.moving_to)}:
            holders.setdefault(gpu_id, []).append(job)
    gpus = {
        gpu_id: replace(
            entry,
            job_ids=tuple(job.request.job_id for job in holders.get(gpu_id, ())),
            memory_reserved_bytes=sum(job.memory_reserved_bytes for job in holders.get(gpu_id, ())),
            is_releasing=any(job.is_stopping for job in holders.get(gpu_id, ())),
        )
        for gpu_id, entry in view.gpus.items()
    }
    host_use = _host_use({gpu_id: entry.node_id for gpu_id, entry in gpus.items()}, running)
    return replace(view, gpus=gpus, running=running, host_use=host_use, index=FreshIndex())


def _host_use(node_of: Mapping[str, str], running: Mapping[str, RunningJob]) -> Mapping[str, HostUse]:
    use: dict[str, HostUse] = {}
    for job in running.values():
        for node_id, here in _by_node(node_of, (*job.assignments, *job.moving_to)).items():
            share, so_far = host_share(job.request, here, len(job.assignments)), use.get(node_id, HostUse())
            use[node_id] = HostUse(
                cpu_cores=so_far.cpu_cores + share.cpu_cores,
                host_memory_bytes=so_far.host_memory_bytes + share.host_memory_bytes,
            )
    return use


def _by_node(node_of: Mapping[str, str], parts: Sequence[Assignment]) -> Counter[str]:
    return Counter(node_of[part.gpu_id] for part in parts if part.gpu_id in node_of)
