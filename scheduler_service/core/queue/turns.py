"""Whose turn it is: the layer before the policies.

A policy decides about one lane at a time, on what the lanes before it have left: higher classes first; inside a class
the tenant that has had least for its weight; of one tenant the lane whose first job came first. With one lane and no
rules for tenants there is one turn, that of all jobs, and the policy sees what it always saw.

Inside a turn the policy may stop or move running jobs of the same tenant and of no higher class. A last turn, in which
no job waits, lets it look after what runs. Running jobs grow only into GPUs that no waiting job needs (`growth.py`).

GPUs may be kept back for a wide job (`reservations.py`): they are closed in the turns that come after its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
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
from scheduler_service.core.queue.growth import has_room, is_wanted_by_others
from scheduler_service.core.queue.lanes import PLAIN_LANE, Lane, LaneName
from scheduler_service.core.queue.ready_queue import NO_LANE
from scheduler_service.core.queue.reservations import Reservation, find_reservation
from scheduler_service.core.queue.turn_order import Queue, Turn, take_turns
from scheduler_service.core.reasons.reason_remedies import WAITS_FOR_ROOM
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.state import ClusterState

LAYER_CODES = frozenset(
    {
        "FAIR_SHARE",
        "QUOTA",
        "QUOTA_TOO_SMALL",
        "TENANT_CLOSED",
        "PROTECTED",
        "RESERVED",
        "RESERVED_FOR_NOW",
        "KEPT_FOR_OTHER",
    }
)
"""Reasons that come from here: the policy was not asked, not followed, or did not see every GPU."""


ASKED_PER_TURN_MAX = 16
"""Questions about one lane in one turn; the next decision goes on."""


def needs_turns(state: ClusterState) -> bool:
    """Say whether the policy is to be asked more than once: there are classes, tenants, or chosen devices."""
    has_classes = state.tenants.rules is not None or bool(state.register.prioritized)
    return has_classes or state.waiting.only_lane != PLAIN_LANE


def decide_in_turns(
    state: Queue,
    take_turn: Callable[[Turn], AbstractSet[str]],
    look: Callable[[], SchedulingView],
    narrow: Callable[[SchedulingView, JobRequest], SchedulingView] | None = None,
) -> Sequence[int]:
    """Take all turns of one decision, each with the jobs of its lane shown.

    Args:
        state: Changes as turns are taken.
        take_turn: Asks the policy and carries its answer out; returns the codes of what was refused.
        look: Returns the cluster with the jobs that are shown.
        narrow: As in `find_reservation`.

    Returns:
        When to decide again even if nothing happens, in ms.
    """
    reservation = find_reservation(state, look, narrow)
    turns = take_turns(state, reservation)
    turn, was_asked, is_kept = next(turns, None), False, True
    asked: set[LaneName] = set()
    while turn is not None:
        turn = replace(turn, asked=asked)
        if reservation is not None:
            is_kept = is_kept and _is_waited_for(state, reservation, was_asked=was_asked)
            turn = _keep_back(state, turn if is_kept else replace(turn, keeps=None))
            was_asked = was_asked or turn.lane == reservation.lane
        was_cut = (_take_within_quota if turn.job_ids is None else _take_with_few)(state, turn, take_turn)
        if turn.job_ids is None and not was_cut:
            asked.add(turn.lane)
        try:
            turn = turns.send(was_cut)
        except StopIteration:
            break
    if reservation is None:
        return []
    state.keep_back(())
    if is_kept:
        _tell_reserved(state, reservation)
    return [reservation.until_ms]


def _keep_back(state: Queue, turn: Turn) -> Turn:
    """Close the GPUs that a turn may not give away, and no others."""
    closed: AbstractSet[str] = frozenset(turn.keeps.gpu_ids) if turn.keeps is not None else frozenset()
    if turn.backfills is not None:
        closed = frozenset(turn.backfills.gpu_ids).difference(turn.backfills.idle_gpu_ids)
    state.keep_back(closed)
    return turn


def _is_waited_for(state: Queue, reservation: Reservation, *, was_asked: bool) -> bool:
    """Say whether a job still waits for GPUs; one that has not taken them although all are free does not."""
    if state.waiting.lane_of(reservation.job_id) is None:
        return False
    return not was_asked or len(state.without_jobs(reservation.gpu_ids)) < len(reservation.gpu_ids)


def _tell_reserved(state: Queue, reservation: Reservation) -> None:
    """Let the job read that GPUs are kept back for it."""
    known = state.decisions.get(reservation.job_id)
    if isinstance(known, Hold) and known.reason.code in WAITS_FOR_ROOM:
        hold = Hold(job_id=reservation.job_id, reason=reservation.reason(state.now_ms))
        state.decisions.record_round((hold,), reservation.lane)


def _take_with_few(state: Queue, turn: Turn, take_turn: Callable[[Turn], AbstractSet[str]]) -> bool:
    """Ask about some jobs of a lane, as far as their quota goes; what is said of those that wait is not kept."""
    left, lane = state.tenants.gpus_left(turn.lane.tenant), state.waiting.lanes.get(turn.lane)
    jobs = lane.chosen(turn.job_ids or frozenset()) if lane is not None else ()
    job_ids = {job.request.job_id for job in jobs if left is None or job.request.gpus <= left}
    if not job_ids:
        return False
    with state.waiting.showing(turn.lane, job_ids=job_ids):
        return "FAIR_SHARE" in take_turn(turn)


def _take_within_quota(state: Queue, turn: Turn, take_turn: Callable[[Turn], AbstractSet[str]]) -> bool:
    """Ask about the jobs that the quota of their tenant leaves room for, again where a start would have broken it.

    Returns:
        Whether the turn was cut short, since no more was dealt to the tenant.
    """
    for _ in range(ASKED_PER_TURN_MAX):
        left = state.tenants.gpus_left(turn.lane.tenant) if turn.lane is not NO_LANE else None
        lane = state.waiting.lanes.get(turn.lane)
        if lane is not None and not has_room(lane, left):
            too_wide = _too_wide(state, turn.lane.tenant, lane)
            decided = frozenset(job_id for one in too_wide for job_id in one.job_ids)
            rest = HoldRest(queue=lane.queue, decided=decided, reason=quota_reason(state, turn.lane.tenant))
            state.decisions.record_round((*too_wide, rest), turn.lane)
            return False
        with state.waiting.showing(turn.lane, left):
            refused = take_turn(turn)
        wider_ids = lane.wider_ids(left) if left is not None and lane is not None else ()
        if wider_ids:
            wide = HoldMany(job_ids=wider_ids, reason=quota_reason(state, turn.lane.tenant))
            state.decisions.record_round((wide, *_too_wide(state, turn.lane.tenant, lane)), turn.lane)
        if "FAIR_SHARE" in refused or "QUOTA" not in refused or state.tenants.gpus_left(turn.lane.tenant) == left:
            return "FAIR_SHARE" in refused
    return False


def find_protected(state: ClusterState, lane: LaneName | None) -> AbstractSet[str]:
    """Return the running jobs that make no room for those of a lane; None = the lanes are not told apart."""
    if lane is None or lane is NO_LANE or not needs_turns(state):
        return frozenset()
    by_tenant = state.tenants.rules is not None
    others = (
        job_ids
        for (priority, tenant), job_ids in state.running_by_class.items()
        if priority > lane.priority or (by_tenant and tenant != lane.tenant)
    )
    return frozenset().union(*others)


@dataclass(slots=True)
class _Admission:
    """What a turn may still give away."""

    state: Queue
    turn: Turn
    view: SchedulingView
    given: int = 0
    given_to: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    backfilled: set[str] = field(default_factory=set)
    protected: dict[str, list[str]] = field(default_factory=dict)


def quota_reason(state: Queue, tenant: str) -> Reason:
    """Return why no more jobs of a tenant may start."""
    quota = _quota_of(state, tenant)
    if not quota:
        return Reason(code="TENANT_CLOSED")
    return Reason(code="QUOTA", numbers={"gpus_held": state.tenants.held_gpus(tenant), "gpus_max": quota})


def _quota_of(state: Queue, tenant: str) -> int:
    rules = state.tenants.rules
    return (rules.quota_of(tenant) or 0) if rules is not None else 0


def _too_wide(state: Queue, tenant: str, lane: Lane | None) -> Sequence[HoldMany]:
    """Hold the jobs of a tenant that ask for more GPUs than it may ever hold: no end of another one helps them."""
    quota = _quota_of(state, tenant)
    job_ids = lane.wider_ids(quota) if lane is not None and quota else ()
    reason = Reason(code="QUOTA_TOO_SMALL", numbers={"gpus_max": quota})
    return [HoldMany(job_ids=job_ids, reason=reason)] if job_ids else []


def admit(
    state: Queue, turn: Turn, decisions: Iterable[Decision], view: SchedulingView
) -> tuple[list[Decision], AbstractSet[str]]:
    """Return a policy's decisions without those that the turn does not allow, and the codes of what was refused.

    Args:
        state: Knows what tenants hold.
        turn: What it is about.
        decisions: The policy's answer.
        view: The cluster as the policy saw it.
    """
    admission = _Admission(state, turn, view)
    admitted = [_admitted(admission, one) for one in decisions]
    kept = [one for one in admitted if one is not None]
    return _explained(admission, kept), admission.refused


def lasting(turn: Turn | None, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Return what of a turn's checked decisions is carried out and kept: of one about a few jobs only their starts."""
    is_about_few = turn is not None and turn.job_ids is not None
    return [one for one in decisions if isinstance(one, Start)] if is_about_few else decisions


def _admitted(admission: _Admission, decision: Decision) -> Decision | None:
    if isinstance(decision, Start):
        queued = admission.state.jobs.get(decision.job_id)
        if queued is None:
            return decision
        reason = _backfill_obstacle(admission, decision) or _obstacle(
            admission, queued.request, len(decision.assignments)
        )
        return decision if reason is None else Hold(job_id=decision.job_id, reason=reason)
    if not isinstance(decision, Stop | Migrate | Reshape | Pause | Resume):
        return decision
    job = admission.view.running.get(decision.job_id)
    if job is None:
        return decision
    if _is_protected(admission, job.request):
        for beneficiary in decision.reason.job_ids:
            admission.protected.setdefault(beneficiary, []).append(decision.job_id)
        return None
    if isinstance(decision, Stop) and _is_in_vain(admission, decision, len(job.assignments)):
        return None
    if isinstance(decision, Reshape):
        return decision if _may_reshape(admission, job, decision) else None
    return decision


def _may_reshape(admission: _Admission, job: RunningJob, reshape: Reshape) -> bool:
    """Say whether a running job may have so many GPUs: only fewer, or those that no job waits for."""
    more = len(reshape.assignments) - len(job.assignments)
    if more <= 0:
        return True
    device = admission.view.gpus[job.assignments[0].gpu_id].gpu.device
    if is_wanted_by_others(admission.state, admission.turn, device):
        return False
    return _obstacle(admission, job.request, more) is None


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


def _backfill_obstacle(admission: _Admission, start: Start) -> Reason | None:
    """Return why a job may not have GPUs kept back for another: its end was foreseen alone, and in one pass."""
    reservation = admission.turn.backfills
    kept = {part.gpu_id for part in start.assignments}.intersection(reservation.gpu_ids) if reservation else set()
    if reservation is None or not kept:
        return None
    is_alone = start.predicted_slowdown_ratio is None and not start.trial_with
    if not is_alone or start.accumulation_steps > 1 or not admission.backfilled.isdisjoint(kept):
        return reservation.reason_of_others()
    admission.backfilled |= kept
    return None


def _reworded(admission: _Admission, reservation: Reservation, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield the decisions with the reason of jobs that would have had GPUs which are kept back."""
    idle = len(reservation.idle_gpu_ids)
    for decision in decisions:
        queued = admission.state.jobs.get(decision.job_id)
        is_hold = isinstance(decision, HoldMany | HoldRest) or (
            isinstance(decision, Hold) and queued is not None and queued.request.gpus <= idle
        )
        if isinstance(decision, HoldRest) and decision.reasons:
            others = reservation.reason_of_others()
            reasons = {
                shape: others if known.code in WAITS_FOR_ROOM else known for shape, known in decision.reasons.items()
            }
            decision = replace(decision, reasons=reasons)
        if is_hold and decision.reason.code in WAITS_FOR_ROOM:
            yield replace(decision, reason=reservation.reason_of_others())
        else:
            yield decision


def _explained(admission: _Admission, decisions: list[Decision]) -> list[Decision]:
    """Return the decisions with the reason of jobs from which GPUs are kept back, or for which no job makes room."""
    reservation = admission.turn.keeps
    if reservation is not None and reservation.idle_gpu_ids:
        decisions = [*_reworded(admission, reservation, decisions)]
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
