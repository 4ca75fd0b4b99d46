"""Checks decisions against the cluster before they are carried out, as a plan applier does.

A policy may be late or wrong; the cluster stays right. A decision that does not pass is dropped and recorded, and its
job waits with the check's own reason. Every pending job leaves with exactly one decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from scheduler_service.core.cluster_view.capacity import Resident, expected_bytes, opportunistic, resident_on
from scheduler_service.core.cluster_view.inventory import kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.replica_groups import may_have_servers, with_servers
from scheduler_service.core.cluster_view.spanning import spanning_obstacle
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import (
    LEAVES,
    PAUSES,
    SHARED_HOLDS,
    Decision,
    Hold,
    HoldMany,
    HoldRest,
    MeasuringStart,
    Migrate,
    Pause,
    Placement,
    Reshape,
    Resume,
    Start,
    Stop,
    unfolded,
)
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge, collision_obstacle
from scheduler_service.core.planning.checked_plan import CheckedPlan, Rejection
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.records import PAUSED_MS_MAX, Assignment, Gpu, JobRequest, Reason
from scheduler_service.core.sharing.colocation_slowdown import (
    ALONE,
    ExpectedSlowdown,
    PlacementSlowdown,
    placement_slowdown,
)
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.core.sharing.sharing_consent import consented_slowdowns
from scheduler_service.core.trial_sharing.measuring_starts import measured_there, unmeasured_slowdown

_ABOUT_PENDING = (Start, Hold)
_NOTHING = CheckedPlan(decisions=(), reservations=MappingProxyType({}), rejections=())


class _Check:
    """State of one check."""

    def __init__(self, view: SchedulingView, pending: Mapping[str, PendingJob]) -> None:
        self.view, self.pending, self.ledger = view, pending, Ledger(view)
        self.decided: set[str] = set()
        self.has_rest = False
        self.leaving: set[str] = set()
        self.told: set[str] = set()
        self.closed_gpu_ids: set[str] = set()
        self.accepted: list[Decision] = []
        self.reservations: dict[str, int] = {}
        self.slowdowns: dict[str, PlacementSlowdown] = {}
        self.surges: dict[str, MemorySurge] = {}
        self.rejections: list[Rejection] = []

    def note(self, resident: Resident) -> None:
        """Remember what is kept for a job that is given GPUs."""
        job_id = resident.request.job_id
        self.reservations[job_id] = resident.memory_reserved_bytes
        if resident.memory_surge is not None:
            self.surges[job_id] = resident.memory_surge


def check_plan(view: SchedulingView, pending: Mapping[str, PendingJob], decisions: Sequence[Decision]) -> CheckedPlan:
    """Check decisions in order, each against what the earlier ones left.

    Args:
        view: What the policy saw.
        pending: The jobs of `view.pending` by id.
        decisions: The policy's answer.
    """
    if not decisions and not pending:
        return _NOTHING  # every other round: a job has ended while none waits
    check = _Check(view, pending)
    for decision in decisions:
        if isinstance(decision, HoldMany) and _is_clean(check, decision):
            check.decided.update(decision.job_ids)
            check.accepted.append(decision)
            continue
        if isinstance(decision, HoldRest) and _is_true_rest(check, decision):
            check.has_rest = True
            check.accepted.append(decision)
            continue
        if not isinstance(decision, SHARED_HOLDS):
            _check_one(check, decision)
            continue
        for single in unfolded((decision,)):
            _check_one(check, single)
    is_complete = check.has_rest or len(check.decided) == len(pending)
    for job_id in () if is_complete else pending:
        if job_id not in check.decided:
            missing = Hold(job_id=job_id, reason=Reason(code="NO_DECISION", job_ids=(job_id,)))
            _reject(check, missing, missing.reason)
    return CheckedPlan(
        decisions=tuple(check.accepted),
        reservations=check.reservations,
        rejections=tuple(check.rejections),
    )


def _is_clean(check: _Check, holds: HoldMany) -> bool:
    ids = set(holds.job_ids)
    is_once = len(ids) == len(holds.job_ids) and not check.has_rest
    return is_once and ids <= check.pending.keys() and ids.isdisjoint(check.decided)


def _is_true_rest(check: _Check, rest: HoldRest) -> bool:
    """It comes last, is about this queue, and leaves out exactly those that are decided about."""
    is_all = rest.queue is check.view.pending or len(rest.queue) == len(check.view.pending)
    return not check.has_rest and is_all and rest.decided == check.decided


def _check_one(check: _Check, decision: Decision) -> None:
    obstacle = _obstacle(check, decision)
    if obstacle is not None:
        _reject(check, decision, obstacle)
        return
    if isinstance(decision, Placement):
        decision = _stated(decision, check.slowdowns[decision.job_id])
        surge = check.surges.get(decision.job_id)
        decision = decision if decision.memory_surge == surge else replace(decision, memory_surge=surge)
    check.accepted.append(decision)
    if isinstance(decision, LEAVES):
        check.leaving.add(decision.job_id)
    elif isinstance(decision, PAUSES):
        check.told.add(decision.job_id)
    else:
        check.decided.add(decision.job_id)


def _stated(placement: Placement, slowdown: PlacementSlowdown) -> Placement:
    """Return a placement with the slowdown that this check found, in its field and in the numbers of its reason."""
    before, is_shared = placement.reason.numbers, bool(slowdown.neighbour_ids)
    own_ratio = slowdown.own_ratio if is_shared else None
    trial_with = slowdown.neighbour_ids[0] if slowdown.is_on_trial else ""
    said = placement.predicted_slowdown_ratio, before.get("slowdown_ratio"), before.get("neighbour_slowdown_ratio")
    is_said = said == ((own_ratio, slowdown.own_ratio, slowdown.neighbour_ratio) if is_shared else (None, None, None))
    if is_said and placement.trial_with == trial_with:
        return placement
    found = {"slowdown_ratio": slowdown.own_ratio, "neighbour_slowdown_ratio": slowdown.neighbour_ratio}
    stated = {name: ratio for name, ratio in found.items() if ratio is not None and (is_shared or name in before)}
    numbers = {name: value for name, value in before.items() if name not in found} | stated
    reason = placement.reason if numbers == before else replace(placement.reason, numbers=numbers)
    return replace(placement, predicted_slowdown_ratio=own_ratio, reason=reason, trial_with=trial_with)


def _reject(check: _Check, decision: Decision, reason: Reason) -> None:
    check.rejections.append(Rejection(decision=decision, reason=reason))
    if decision.job_id in check.pending and decision.job_id not in check.decided:
        check.decided.add(decision.job_id)
        check.accepted.append(Hold(job_id=decision.job_id, reason=reason, candidates=decision.candidates))


def _obstacle(check: _Check, decision: Decision) -> Reason | None:
    if isinstance(decision, _ABOUT_PENDING):  # as most are
        if decision.job_id not in check.pending:
            return _about("JOB_NOT_PENDING", decision)
        if decision.job_id in check.decided or check.has_rest:
            return _about("DECIDED_TWICE", decision)
        return _start_obstacle(check, decision) if isinstance(decision, Start) else None
    if isinstance(decision, LEAVES):
        running = check.view.index.reported.get(decision.job_id)  # time changes nothing that is asked of it
        if running is None or running.is_stopping or decision.job_id in check.leaving:
            return _about("JOB_NOT_RUNNING", decision)
        return None if isinstance(decision, Stop) else _move_obstacle(check, running, decision)
    if isinstance(decision, PAUSES):
        return _pause_obstacle(check, decision)
    return _about("DECISION_NOT_SUPPORTED", decision)


def _pause_obstacle(check: _Check, decision: Pause | Resume) -> Reason | None:
    running = check.view.running.get(decision.job_id)
    if running is None or running.is_stopping or decision.job_id in check.leaving:
        return _about("JOB_NOT_RUNNING", decision)
    if decision.job_id in check.told:
        return _about("DECIDED_TWICE", decision)
    if isinstance(decision, Resume):
        can_resume = running.pause is not None and not running.pause.is_resuming
        return None if can_resume else _about("JOB_NOT_PAUSED", decision)
    if running.pause is not None:
        return _about("ALREADY_PAUSED", decision)
    if not 1 <= decision.paused_ms_max <= PAUSED_MS_MAX:
        numbers = {"paused_max_ms": decision.paused_ms_max, "longest_ms": PAUSED_MS_MAX}
        return Reason(code="PAUSE_TOO_LONG", numbers=numbers, job_ids=(decision.job_id,))
    obstacle = pause_obstacle(check.view, running)
    if obstacle is None:
        check.closed_gpu_ids.update(part.gpu_id for part in running.assignments)
    return obstacle


def _about(code: str, decision: Decision) -> Reason:
    return Reason(code=code, job_ids=(decision.job_id,))


def _start_obstacle(check: _Check, start: Start) -> Reason | None:
    resident = _admitted(check, check.pending[start.job_id].request, start, None)
    if isinstance(resident, Reason):
        return resident
    check.ledger.place(resident, start.assignments)
    check.note(resident)
    return None


def _move_obstacle(check: _Check, running: RunningJob, move: Migrate | Reshape) -> Reason | None:
    """Check a move as a start of the same job that may count on what it holds itself."""
    if not check.view.can_move:
        return _about("MOVES_NOT_SUPPORTED", move)
    start = Start(
        job_id=move.job_id,
        reason=move.reason,
        assignments=move.assignments,
        micro_batch_size=move.micro_batch_size if isinstance(move, Reshape) else running.micro_batch_size,
        accumulation_steps=move.accumulation_steps if isinstance(move, Reshape) else running.accumulation_steps,
        servers=move.servers if isinstance(move, Reshape) else None,
    )
    if isinstance(move, Migrate) and len(move.assignments) != len(running.assignments):
        numbers = {"gpus_needed": len(running.assignments), "gpus_given": len(move.assignments)}
        return Reason(code="GANG_INCOMPLETE", numbers=numbers, job_ids=(move.job_id,))
    servers = running.request.replicas.servers
    has_servers = start.servers if start.servers is not None else servers
    if (set(move.assignments), start.micro_batch_size, start.accumulation_steps, has_servers) == (
        set(running.assignments),
        running.micro_batch_size,
        running.accumulation_steps,
        servers,
    ):
        return _about("NOTHING_TO_MOVE", move)
    resident = _admitted(check, running.request, start, running)
    if isinstance(resident, Reason):
        return resident
    check.ledger.move(running, resident, move.assignments)
    check.note(resident)
    return None


def _admitted(check: _Check, request: JobRequest, start: Start, running: RunningJob | None) -> Resident | Reason:
    """Return a job as a resident of the GPUs that it is given, with its servers, or why it may not come.

    Args:
        check: What earlier decisions left.
        request: The job.
        start: Where it shall run.
        running: Where it runs now; what it holds there is its own to use.
    """
    if not may_have_servers(request, start.servers):
        numbers = {"servers_given_count": start.servers or 0}
        return Reason(code="SERVERS_NOT_ALLOWED", numbers=numbers, job_ids=(request.job_id,))
    request = with_servers(request, start.servers)
    return (
        _shape_obstacle(request, start)
        or _gpu_obstacle(check, start)
        or _device_obstacle(check, request, start)
        or _node_obstacle(check, request, start, running)
        or _resident_or_obstacle(check, request, start, running)
    )


def _shape_obstacle(request: JobRequest, start: Start) -> Reason | None:
    gpus = len(start.assignments)
    if gpus not in (request.allowed_gpus or (request.gpus,)):
        return Reason(code="GANG_INCOMPLETE", numbers={"gpus_needed": request.gpus, "gpus_given": gpus})
    if not _are_ranks(start.assignments):
        return Reason(code="RANKS_WRONG", numbers={"gpus_given": gpus})
    samples = start.micro_batch_size * start.accumulation_steps * gpus
    if start.micro_batch_size < 1 or start.accumulation_steps < 1 or samples < request.global_batch_size:
        return Reason(
            code="BATCH_NOT_COVERED", numbers={"batch_samples": request.global_batch_size, "given_samples": samples}
        )
    if request.takes_whole_batch and start.accumulation_steps > 1:
        return Reason(code="BATCH_NOT_CUT", numbers={"accumulation_steps": start.accumulation_steps})
    return None


def _are_ranks(assignments: Sequence[Assignment]) -> bool:
    """Return whether every rank has a GPU of its own."""
    if len(assignments) == 1:
        return assignments[0].rank == 0
    ranks = sorted([assignment.rank for assignment in assignments])
    distinct = {assignment.gpu_id for assignment in assignments}
    return ranks == list(range(len(assignments))) and len(distinct) == len(assignments)


def _gpu_obstacle(check: _Check, start: Start) -> Reason | None:
    gpus, closed = check.view.gpus, check.closed_gpu_ids
    gpu_ids = tuple([assignment.gpu_id for assignment in start.assignments])
    unknown = tuple([gpu_id for gpu_id in gpu_ids if gpu_id not in gpus])
    if unknown:
        return Reason(code="GPU_NOT_USABLE", gpu_ids=unknown)
    releasing = tuple([gpu_id for gpu_id in gpu_ids if gpus[gpu_id].is_releasing or gpu_id in closed])
    if releasing:
        return Reason(code="GPU_RELEASING", gpu_ids=releasing)
    kinds = {kind_of(gpus[gpu_id].gpu) for gpu_id in gpu_ids} if len(gpu_ids) > 1 else ()
    return Reason(code="MIXED_DEVICES", gpu_ids=gpu_ids) if len(kinds) > 1 else None


def _node_obstacle(check: _Check, request: JobRequest, start: Start, running: RunningJob | None) -> Reason | None:
    view = check.view
    gpus_by_node: dict[str, int] = {}
    for assignment in start.assignments:
        node_id = view.gpus[assignment.gpu_id].node_id
        gpus_by_node[node_id] = gpus_by_node.get(node_id, 0) + 1
    if request.terms.across_nodes and len(gpus_by_node) > 1:
        if (obstacle := spanning_obstacle([view.nodes[node_id] for node_id in gpus_by_node])) is not None:
            return obstacle
    elif view.nodes_per_job_max and len(gpus_by_node) > view.nodes_per_job_max:
        numbers = {"nodes_needed": len(gpus_by_node), "nodes_max": view.nodes_per_job_max}
        return Reason(code="GANG_NEEDS_MORE_NODES", numbers=numbers)
    for node_id, gpus_here in gpus_by_node.items():
        own = check.ledger.host_part(request, running.assignments, node_id) if running is not None else None
        if not check.ledger.host_fits(
            view.nodes[node_id], request, gpus_here=gpus_here, gpus=len(start.assignments), freed=own
        ):
            wanted: dict[str, float] = {"cpu_cores": request.cpu_cores, "host_memory_bytes": request.host_memory_bytes}
            return Reason(code="HOST_DOES_NOT_FIT", numbers=wanted)
    return None


def _device_obstacle(check: _Check, request: JobRequest, start: Start) -> Reason | None:
    devices = request.terms.devices
    if not devices:
        return None
    gpus = check.view.gpus
    wrong = [part.gpu_id for part in start.assignments if not is_device_named(devices, gpus[part.gpu_id].gpu.device)]
    return Reason(code="DEVICE_NOT_ALLOWED", gpu_ids=tuple(wrong)) if wrong else None


def _resident_or_obstacle(
    check: _Check, request: JobRequest, start: Start, running: RunningJob | None
) -> Resident | Reason:
    if isinstance(start, MeasuringStart):
        check.slowdowns[request.job_id] = unmeasured_slowdown(check.view, start)
        return measured_there(check.view, check.ledger, start, check.pending[request.job_id])
    gpu = check.view.gpus[start.assignments[0].gpu_id].gpu
    resident = _resident(check.view, request, start, gpu)
    if resident is None:
        return _too_large(check.view, request, start, gpu)
    own_gpu_ids = {part.gpu_id for part in running.assignments} if running is not None else frozenset()
    shared: list[Sequence[tuple[Resident, ExpectedSlowdown]]] = []
    for assignment in start.assignments:
        if resident.memory_surge is None and check.ledger.is_free(assignment.gpu_id):
            continue  # it is of the kind for which the reservation was found: no other job, all of its memory
        gpu_view = check.view.gpus[assignment.gpu_id]
        there = check.ledger.residents(assignment.gpu_id)
        others = [one for one in there if one.request.job_id != request.job_id] if there else []
        if others:
            consented = consented_slowdowns(resident, others, gpu_view.gpu, check.view.predictions)
            if isinstance(consented, Reason):
                return consented
            shared.append(consented)
        free_bytes = check.ledger.memory_free_bytes(gpu_view)
        if running is not None and assignment.gpu_id in own_gpu_ids:
            free_bytes += running.memory_reserved_bytes
        needed_bytes = check.ledger.memory_needed_bytes(resident, gpu_view)
        if needed_bytes > free_bytes:
            return _memory_reason("MEMORY_DOES_NOT_FIT", gpu_view.gpu, needed_bytes, free_bytes)
        if resident.memory_surge is not None and (obstacle := _collision(check, resident, others, gpu_view.gpu)):
            return obstacle
    check.slowdowns[request.job_id] = placement_slowdown(resident, shared) if shared else ALONE
    return resident


def _collision(check: _Check, resident: Resident, others: Sequence[Resident], gpu: Gpu) -> Reason | None:
    if sum(one.memory_reserved_bytes for one in (resident, *others)) <= gpu.memory_bytes:
        return None
    surges = (resident.memory_surge, *(one.memory_surge for one in others))
    return collision_obstacle(gpu.gpu_id, surges, check.view.opportunistic_tau_ratio)


def _resident(view: SchedulingView, request: JobRequest, start: Start, gpu: Gpu) -> Resident | None:
    prediction = view.predictions.job(request.key, gpu.device)
    resident = resident_on(request, prediction, start.micro_batch_size, gpu)
    return resident and opportunistic(resident, prediction, gpu, view.opportunistic_tau_ratio)


def _too_large(view: SchedulingView, request: JobRequest, start: Start, gpu: Gpu) -> Reason:
    needed_bytes = expected_bytes(request, view.predictions.job(request.key, gpu.device), start.micro_batch_size)
    return _memory_reason("MEMORY_EXCEEDS_GPU", gpu, needed_bytes, gpu.memory_bytes)


def _memory_reason(code: str, gpu: Gpu, needed_bytes: int, free_bytes: int) -> Reason:
    numbers = {"needed_bytes": needed_bytes, "free_bytes": free_bytes, "gpu_memory_bytes": gpu.memory_bytes}
    return Reason(code=code, numbers=numbers, gpu_ids=(gpu.gpu_id,))
