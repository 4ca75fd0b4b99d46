"""Whose turn it is: the layer before the policies.

A policy decides about one lane at a time, on what the lanes before it have left: higher classes first; inside a class
the tenant that has had least for its weight; of one tenant the lane whose first job came first. With one lane and no
rules for tenants there is one turn, that of everybody, and the policy sees what it always saw.

Inside a turn the policy may stop or move running jobs of the same tenant and of no higher class. A last turn, in which
nobody waits, lets it look after what runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Protocol

from scheduler_service.core.cluster_index import FreshIndex
from scheduler_service.core.decision_log import DecisionLog
from scheduler_service.core.decisions import (
    Decision,
    Hold,
    HoldMany,
    HoldRest,
    Migrate,
    Pause,
    Reshape,
    Resume,
    Start,
    Stop,
)
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.lanes import PLAIN_LANE, LaneName
from scheduler_service.core.queue_terms import is_device_named
from scheduler_service.core.ready_queue import NO_LANE, WaitingJobs
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.spanning import can_span, widest_storage
from scheduler_service.core.state import ClusterState
from scheduler_service.core.tenants import TenantUse
from scheduler_service.core.view import RunningJob, SchedulingView

LAYER_CODES = frozenset({"FAIR_SHARE", "QUOTA", "PROTECTED"})
"""Reasons that come from here: the policy was not asked, or not followed."""


ASKED_PER_TURN_MAX = 16
"""Questions about one lane in one turn; the next decision goes on."""


class Queue(Protocol):
    """Whose jobs wait, and what tenants hold: the engine's state, or that of a snapshot."""

    now_ms: int
    waiting: WaitingJobs
    tenants: TenantUse
    decisions: DecisionLog

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """The waiting jobs, and others, by id."""

    @property
    def gpus_free(self) -> int:
        """GPUs that hold nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question to the policy.

    Attributes:
        lane: Whose jobs it is about; `NO_LANE` = it is about what runs.
        gpus_max: GPUs that may be given away in this turn; None = any number.
    """

    lane: LaneName
    gpus_max: int | None = None


def needs_turns(state: ClusterState) -> bool:
    """Say whether the policy is to be asked more than once: there are classes, tenants, or chosen devices."""
    lanes = state.waiting.lanes
    if state.tenants.rules is not None or state.register.prioritized:
        return True
    return len(lanes) > 1 or (len(lanes) == 1 and PLAIN_LANE not in lanes)


def take_turns(state: Queue) -> Generator[Turn, bool, None]:
    """Yield the turns of one decision; each is told whether the turn before was cut short.

    The state changes between turns, as decisions are carried out.
    """
    for priority in sorted({name.priority for name in state.waiting.lanes}, reverse=True):
        yield from _turns_of_class(state, priority)
    yield Turn(lane=NO_LANE)


def _turns_of_class(state: Queue, priority: int) -> Generator[Turn, bool, None]:
    by_tenant: dict[str, list[LaneName]] = {}
    oldest_first = sorted(state.waiting.lanes.items(), key=lambda item: item[1].head)
    for name, _ in oldest_first:
        if name.priority == priority:
            by_tenant.setdefault(name.tenant, []).append(name)
    in_turn = state.tenants.in_turn(by_tenant, state.now_ms)
    settled: set[LaneName] = set()
    if len(in_turn) > 1:
        dealt = state.tenants.deal(in_turn, state.gpus_free, state.now_ms)
        for tenant in in_turn:
            settled |= yield from _dealt_turns(state, by_tenant[tenant], dealt[tenant])
    for tenant in in_turn:
        for name in by_tenant[tenant]:
            if name not in settled and name in state.waiting.lanes:
                yield Turn(lane=name)


def _dealt_turns(state: Queue, lanes: Sequence[LaneName], gpus: int) -> Generator[Turn, bool, set[LaneName]]:
    """Yield the turns of a tenant in which it may take what was dealt to it; return the lanes that want no more."""
    settled: set[LaneName] = set()
    for name in lanes:
        if gpus <= 0:
            break
        before = state.tenants.held_gpus(name.tenant)
        was_cut = yield Turn(lane=name, gpus_max=gpus)
        gpus -= state.tenants.held_gpus(name.tenant) - before
        if not was_cut:
            settled.add(name)
    return settled


def decide_in_turns(state: Queue, take_turn: Callable[[Turn], AbstractSet[str]]) -> None:
    """Take all turns of one decision, each with the jobs of its lane shown.

    Args:
        state: Changes as turns are taken.
        take_turn: Asks the policy and carries its answer out; returns the codes of what was refused.
    """
    turns = take_turns(state)
    turn = next(turns, None)
    while turn is not None:
        was_cut = _take_within_quota(state, turn, take_turn)
        try:
            turn = turns.send(was_cut)
        except StopIteration:
            return


def _take_within_quota(state: Queue, turn: Turn, take_turn: Callable[[Turn], AbstractSet[str]]) -> bool:
    """Ask about the jobs that the quota of their tenant leaves room for, again where a start would have broken it.

    Returns:
        Whether the turn was cut short, since no more was dealt to the tenant.
    """
    for _ in range(ASKED_PER_TURN_MAX):
        left = state.tenants.gpus_left(turn.lane.tenant) if turn.lane is not NO_LANE else None
        lane = state.waiting.lanes.get(turn.lane)
        if left == 0 and lane is not None:
            rest = HoldRest(queue=lane.queue, reason=quota_reason(state, turn.lane.tenant))
            state.decisions.record_round((rest,), turn.lane)
            return False
        with state.waiting.showing(turn.lane, left):
            refused = take_turn(turn)
        wider_ids = lane.wider_ids(left) if left is not None and lane is not None else ()
        if wider_ids:
            wide = HoldMany(job_ids=wider_ids, reason=quota_reason(state, turn.lane.tenant))
            state.decisions.record_round((wide,), turn.lane)
        if "FAIR_SHARE" in refused or "QUOTA" not in refused or state.tenants.gpus_left(turn.lane.tenant) == left:
            return "FAIR_SHARE" in refused
    return False


def find_protected(state: ClusterState, lane: LaneName | None) -> AbstractSet[str]:
    """Return the running jobs that make no room for those of a lane; None = the lanes are not told apart."""
    if lane is None or lane is NO_LANE or not needs_turns(state):
        return frozenset()
    by_tenant = state.tenants.rules is not None
    jobs = ((job_id, job.request) for job_id, job in state.running.items())
    return {
        job_id
        for job_id, request in jobs
        if request.terms.priority > lane.priority or (by_tenant and request.tenant != lane.tenant)
    }


def seen_in_lane(view: SchedulingView, lane: LaneName | None) -> SchedulingView:
    """Return a view without the GPUs that the jobs of a lane do not want.

    Jobs that may span nodes see those that share their storage, and take as many of them as they need; no other job is
    moved for them, since it may not span nodes.
    """
    if lane is not None and lane.across_nodes:
        view = _across_nodes(view)
    if lane is None or not lane.devices:
        return view
    gpus = {name: entry for name, entry in view.gpus.items() if is_device_named(lane.devices, entry.gpu.device)}
    return replace(view, gpus=gpus, index=FreshIndex())


def _across_nodes(view: SchedulingView) -> SchedulingView:
    storage_id = widest_storage(view)
    nodes = {node_id: node for node_id, node in view.nodes.items() if can_span(node) and node.storage_id == storage_id}
    gpus = {gpu_id: entry for gpu_id, entry in view.gpus.items() if entry.node_id in nodes}
    return replace(view, nodes=nodes, gpus=gpus, nodes_per_job_max=0, can_move=False, index=FreshIndex())


@dataclass(slots=True)
class _Admission:
    """What a turn may still give away."""

    state: Queue
    turn: Turn
    running: Mapping[str, RunningJob]
    given: int = 0
    given_to: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    protected: dict[str, list[str]] = field(default_factory=dict)


def quota_reason(state: Queue, tenant: str) -> Reason:
    """Return why no more jobs of a tenant may start."""
    rules = state.tenants.rules
    gpus_max = rules.of(tenant).gpus_max if rules is not None else 0
    return Reason(code="QUOTA", numbers={"gpus_held": state.tenants.held_gpus(tenant), "gpus_max": gpus_max})


def admit(
    state: Queue, turn: Turn, decisions: Iterable[Decision], running: Mapping[str, RunningJob]
) -> tuple[list[Decision], AbstractSet[str]]:
    """Return a policy's decisions without those that the turn does not allow, and the codes of what was refused.

    Args:
        state: Knows what tenants hold.
        turn: What it is about.
        decisions: The policy's answer.
        running: The running jobs as the policy saw them.
    """
    admission = _Admission(state, turn, running)
    admitted = [_admitted(admission, one) for one in decisions]
    kept = [one for one in admitted if one is not None]
    return _explained(admission, kept), admission.refused


def _admitted(admission: _Admission, decision: Decision) -> Decision | None:
    if isinstance(decision, Start):
        queued = admission.state.jobs.get(decision.job_id)
        if queued is None:
            return decision
        reason = _obstacle(admission, queued.request, len(decision.assignments))
        return decision if reason is None else Hold(job_id=decision.job_id, reason=reason)
    if not isinstance(decision, Stop | Migrate | Reshape | Pause | Resume):
        return decision
    job = admission.running.get(decision.job_id)
    if job is None:
        return decision
    if _is_protected(admission, job.request):
        for beneficiary in decision.reason.job_ids:
            admission.protected.setdefault(beneficiary, []).append(decision.job_id)
        return None
    if isinstance(decision, Stop) and _is_in_vain(admission, decision, len(job.assignments)):
        return None
    if isinstance(decision, Reshape):
        more = len(decision.assignments) - len(job.assignments)
        return decision if more <= 0 or _obstacle(admission, job.request, more) is None else None
    return decision


def _is_protected(admission: _Admission, request: JobRequest) -> bool:
    """Say whether a running job is none of this turn's business."""
    lane = admission.turn.lane
    if lane is NO_LANE:
        return False
    is_foreign = admission.state.tenants.rules is not None and request.tenant != lane.tenant
    return is_foreign or request.terms.priority > lane.priority


def _is_in_vain(admission: _Admission, stop: Stop, gpus: int) -> bool:
    """Say whether the job that a running one shall make room for may not have that many GPUs even then."""
    state = admission.state
    for job_id in stop.reason.job_ids:
        queued = state.jobs.get(job_id)
        left = state.tenants.gpus_left(queued.request.tenant) if queued is not None else None
        if queued is not None and left is not None and queued.request.gpus > left + gpus:
            return True
    return False


def _obstacle(admission: _Admission, request: JobRequest, gpus: int) -> Reason | None:
    """Return why a job may not have so many GPUs more; None = it may, and they are counted."""
    tenants, turn, tenant = admission.state.tenants, admission.turn, request.tenant
    left = tenants.gpus_left(tenant)
    if left is not None and admission.given_to[tenant] + gpus > left:
        admission.refused.add("QUOTA")
        return quota_reason(admission.state, tenant)
    if turn.gpus_max is not None and admission.given >= turn.gpus_max:
        admission.refused.add("FAIR_SHARE")
        return Reason(code="FAIR_SHARE", numbers={"gpus_held": tenants.held_gpus(tenant)})
    admission.given += gpus
    admission.given_to[tenant] += gpus
    return None


def _explained(admission: _Admission, decisions: list[Decision]) -> list[Decision]:
    """Return the decisions with the reason of jobs for which no running job makes room, since it is protected."""
    if not admission.protected:
        return decisions
    reasons = {
        job_id: Reason(code="PROTECTED", job_ids=tuple(others)) for job_id, others in admission.protected.items()
    }
    found: list[Decision] = []
    for decision in decisions:
        if isinstance(decision, HoldMany):
            named = [job_id for job_id in decision.job_ids if job_id in reasons]
            found += [Hold(job_id=job_id, reason=reasons[job_id]) for job_id in named]
            rest = tuple(job_id for job_id in decision.job_ids if job_id not in reasons)
            if rest:
                found.append(HoldMany(job_ids=rest, reason=decision.reason, until_ms=decision.until_ms))
        elif isinstance(decision, Hold) and decision.job_id in reasons:
            found.append(Hold(job_id=decision.job_id, reason=reasons[decision.job_id]))
        else:
            found.append(decision)
    return found
