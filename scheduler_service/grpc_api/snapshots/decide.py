"""Stateless decisions: a snapshot in, decisions out, by the same policies and plan check as live.

An answer follows from its request alone; what is kept between calls only saves reading the same rows again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

from google.protobuf import struct_pb2

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.view import GpuView, HostUse, PendingJob, Policy, RunningJob, SchedulingView
from scheduler_service.core.copied_record import make_records
from scheduler_service.core.decisions import Decision, Hold, HoldMany, Migrate, Reshape, Start, Stop
from scheduler_service.core.errors import POLICY_FAULTS
from scheduler_service.core.jobs.opportunistic_sharing import claimed_bytes, largest_surge_bytes
from scheduler_service.core.lifecycle.trial_start import TRIAL_MS
from scheduler_service.core.planning.placement_limits import ClusterLimits
from scheduler_service.core.planning.policy_answer import answer_of, describe_fault
from scheduler_service.core.records import Reason
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api import policies, validation
from scheduler_service.grpc_api.jobs.job_reasons import worded_for
from scheduler_service.grpc_api.jobs.translate_jobs import assignment_messages, candidate_messages, reason_message
from scheduler_service.grpc_api.side_thread import SideThread
from scheduler_service.grpc_api.snapshots import translate_snapshot
from scheduler_service.grpc_api.snapshots.missing_predictions import MissingPredictions, ask_missing, find_missing
from scheduler_service.grpc_api.snapshots.snapshot_bases import SnapshotBases
from scheduler_service.grpc_api.snapshots.snapshot_nodes import describe_unusable
from scheduler_service.grpc_api.snapshots.snapshot_reading import ReadSnapshot, read_snapshot
from scheduler_service.grpc_api.snapshots.snapshot_rows import bounded_warnings
from scheduler_service.grpc_api.snapshots.snapshot_turns import decide_on_snapshot, split_by_arrays, stop_expired
from scheduler_service.grpc_api.snapshots.unread_request import UnreadRequest
from scheduler_service.grpc_api.waiting_caller import WaitingCaller

# When the caller sets no deadline.
DEFAULT_DEADLINE_S = 10.0
# A snapshot may take 32 MB.
WAITING_MAX = 32
COMPARED_POLICIES_MAX = 8
POLICIES_KEPT_MAX = 64
NO_USABLE_GPU = "NO_USABLE_GPU"
POLICY_FAILED = "POLICY_FAILED"
# Left for deciding after the predictor has answered.
_DECIDING_RATIO = 0.8


async def decide(
    request: scheduling_pb2.DecideRequest | UnreadRequest,
    *,
    predictor: PredictorClient | None,
    seconds_left: float | None,
    thread: SideThread | None = None,
    bases: SnapshotBases | None = None,
) -> scheduling_pb2.DecideResponse:
    """Decide on a snapshot; all that takes time with its size happens in another thread.

    Args:
        request: Snapshot, policy and its parameters.
        predictor: Asked for predictions that the snapshot lacks; None = there is none.
        seconds_left: Until the caller's deadline.
        thread: Where; agents and users must not wait for it. None = one of its own.
        bases: What is kept from call to call, always used in the same thread; None = nothing is.

    Raises:
        UnknownBaseError: The snapshot goes on from what is not kept.
        InvalidRequestError: Too many rows or policies, an unknown policy or parameter, a snapshot that is none.
    """
    unread, asked = _unread(request)
    validation.require(_violations(unread))
    asked_policy = _asked_policy(asked.policy, policies.read_parameters(asked.parameters))
    compared = [_asked_policy(name, {}) for name in asked.compared_policies]
    thread, caller = thread or deciding_thread(), WaitingCaller()

    faults = dict[str, str]()

    def decisions_of(one: _AskedPolicy, read: ReadSnapshot) -> list[scheduling_pb2.Decision]:
        return _decisions(_HeardPolicy(one, faults), read, explain=asked.explain)

    def begin() -> tuple[ReadSnapshot, MissingPredictions | None, list[scheduling_pb2.Decision]]:
        """Read, and decide at once where nothing is to be asked first: each turn of another thread has its price."""
        read = read_snapshot(unread, SnapshotBases() if bases is None else bases)
        read.store.caller = caller
        if asked.validate_only:
            return read, None, []
        missing = _missing(read, can_ask=predictor is not None)
        return read, missing, [] if missing.askable else decisions_of(asked_policy, read)

    with caller:
        read, missing, decisions = await thread.begin(begin)
        if missing is None:
            return scheduling_pb2.DecideResponse(
                effective_parameters=asked_policy.effective, warnings=read.valid.warnings, base_token=read.base_token
            )
        answers = missing.answers
        if missing.askable and predictor is not None:
            answers = await ask_missing(missing, predictor, (seconds_left or DEFAULT_DEADLINE_S) * _DECIDING_RATIO)
            decisions = await thread.begin(lambda: decisions_of(asked_policy, read))
        comparisons = [await _comparison(one, thread, partial(decisions_of, one, read)) for one in compared]
        return scheduling_pb2.DecideResponse(
            decisions=decisions,
            effective_parameters=asked_policy.effective,
            model_version=answers.model_version,
            warnings=[*read.valid.warnings, *_unusable(read), *answers.warnings, *_failed(faults)],
            base_token=read.base_token,
            comparisons=comparisons,
        )


def _unread(
    request: scheduling_pb2.DecideRequest | UnreadRequest,
) -> tuple[UnreadRequest, scheduling_pb2.DecideRequest]:
    unread = request if isinstance(request, UnreadRequest) else UnreadRequest.read(request.SerializeToString())
    return unread, unread.asked


def _missing(read: ReadSnapshot, *, can_ask: bool) -> MissingPredictions:
    keys, devices = read.keys, read.nodes.least_memory_bytes
    read.store.read([*product(dict.fromkeys(keys), devices)])
    return find_missing(read.messages, keys, devices, read.store, can_ask=can_ask)


def _unusable(read: ReadSnapshot) -> list[resources_pb2.Warning]:
    why = describe_unusable(read.nodes) if read.valid.snapshot.pending else ""
    return bounded_warnings(NO_USABLE_GPU, [why] if why else [])


def _failed(faults: Mapping[str, str]) -> list[resources_pb2.Warning]:
    return bounded_warnings(POLICY_FAILED, list(faults.values()))


async def _comparison(
    asked: _AskedPolicy, thread: SideThread, decisions: Callable[[], list[scheduling_pb2.Decision]]
) -> scheduling_pb2.PolicyDecisions:
    decided = await thread.begin(decisions)
    return scheduling_pb2.PolicyDecisions(policy=asked.name, decisions=decided, effective_parameters=asked.effective)


@dataclass(frozen=True, slots=True)
class _AskedPolicy:
    """A policy that is asked, with all its parameters."""

    name: str
    policy: Policy
    effective: struct_pb2.Struct


class _HeardPolicy:
    """A policy whose faults hold all jobs, as on a live cluster, instead of ending the call or the scheduler."""

    def __init__(self, asked: _AskedPolicy, faults: dict[str, str]) -> None:
        self._asked, self._faults = asked, faults
        self.opportunistic_tau_ratio = getattr(asked.policy, "opportunistic_tau_ratio", 0.0)

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return the policy's decisions; the words of what it raised are kept by its name."""
        try:
            return answer_of(self._asked.policy, view)
        except POLICY_FAULTS as error:
            name = self._asked.name
            self._faults[name] = f"policy {name} failed: {describe_fault(self._asked.policy, error)}"
            job_ids = tuple(job.request.job_id for job in view.pending)
            return (HoldMany(job_ids=job_ids, reason=Reason(code=POLICY_FAILED)),)


def _asked_policy(name: str, parameters: Mapping[str, Any]) -> _AskedPolicy:
    if not parameters:
        return _policy_as_it_is(name)
    effective = policies.effective_parameters(name, parameters)
    return _AskedPolicy(name, policies.make(name, parameters), effective)


@lru_cache(maxsize=POLICIES_KEPT_MAX)
def _policy_as_it_is(name: str) -> _AskedPolicy:
    """Return a policy without parameters, which is made once: it remembers nothing."""
    return _AskedPolicy(name, policies.make(name, {}), policies.effective_parameters(name, {}))


def _violations(unread: UnreadRequest) -> Iterator[FieldViolation]:
    request = unread.asked
    if not (unread.has_snapshot or request.validate_only):
        # Answered, it would look like a cluster without waiting jobs.
        yield FieldViolation(field="snapshot", description="is missing; state nodes and jobs")
    if len(request.compared_policies) > COMPARED_POLICIES_MAX:
        description = f"names {len(request.compared_policies):,} policies, at most {COMPARED_POLICIES_MAX}"
        yield FieldViolation(field="compared_policies", description=description)


def deciding_thread() -> SideThread:
    """Return a thread for decisions on snapshots."""
    return SideThread("decide", waiting_max=WAITING_MAX)


def _decisions(policy: Policy, read: ReadSnapshot, *, explain: bool) -> list[scheduling_pb2.Decision]:
    limits_of = {job.request.job_id: job.limits for job in read.jobs if job.limits is not None}
    valid, limits = read.valid, ClusterLimits(of_jobs=limits_of, queues_of_nodes=read.nodes.queues)
    view = _view(read, explain=explain, tau_ratio=getattr(policy, "opportunistic_tau_ratio", 0.0))
    view, expired = stop_expired(view)
    view, beyond_limits = split_by_arrays(view)
    plan = decide_on_snapshot(view, policy, limits, valid.snapshot)
    holds = [*(_deferral(job, valid.snapshot.now_ms) for job in view.deferred), *beyond_limits, *valid.held]
    requests = [*(job.request for job in view.pending), *(job.request for job in view.running.values())]
    accepted = {one.job_id: one.max_slowdown_ratio for one in requests}
    decided = (*expired, *_worded(view, plan.decisions), *holds)
    messages = [_decision_message(one, accepted, explain=explain) for one in decided]
    for message in messages:
        if message.HasField("start"):
            message.memory_reserved_bytes = plan.reservations[message.job_id]
    return messages


def _worded(view: SchedulingView, decisions: Collection[Decision]) -> Iterator[Decision]:
    """Word why jobs wait as `cotenant explain` does."""
    inventory = view.index.inventory
    # An equal job that starts is another one: who waits because of it is to read its name.
    starting = {one.job_id for one in decisions if isinstance(one, Start)}
    waiting = {job.request.job_id: job.request for job in view.pending if job.request.job_id not in starting}
    for one in decisions:
        request = waiting.get(one.job_id) if isinstance(one, Hold) else None
        if request is None:
            yield one
        else:
            yield replace(one, reason=worded_for(request, one.reason, inventory, view.predictions, waiting.get))


def _view(read: ReadSnapshot, *, explain: bool, tau_ratio: float) -> SchedulingView:
    snapshot, nodes = read.valid.snapshot, read.nodes
    rows = translate_snapshot.RunningRows(
        now_ms=snapshot.now_ms, gpus=nodes.gpus, predictions=read.store, tau_ratio=tau_ratio
    )
    requests = [job.request for job in read.jobs]
    running = {job.request.job_id: job for job in rows.read(read.running, requests[: len(read.running)])}
    gpus = {**nodes.empty.gpus, **_held(nodes.empty.gpus, _holders(running.values()))}
    waiting = sorted(
        translate_snapshot.pending_jobs(read.pending, requests[len(read.running) :]),
        key=lambda job: (job.submitted_at_ms, job.request.job_id),
    )
    return SchedulingView(
        now_ms=snapshot.now_ms,
        nodes=nodes.usable,
        gpus=gpus,
        pending=tuple(job for job in waiting if job.not_before_ms <= snapshot.now_ms),
        deferred=tuple(job for job in waiting if job.not_before_ms > snapshot.now_ms),
        running=running,
        predictions=read.store,
        unpredictable_keys=read.store.unpredictable_keys,
        seed=snapshot.seed,
        explain=explain,
        host_use=_host_use(gpus, running.values()),
        slowdown_ewma_ratios=nodes.slowdown_ewma_ratios,
        opportunistic_tau_ratio=tau_ratio,
        index=FreshIndex(empty=nodes.empty),
    )


def _held(empty: Mapping[str, GpuView], holders: Mapping[str, list[RunningJob]]) -> dict[str, GpuView]:
    """Return the usable GPUs that jobs hold; most of them hold one."""
    single = {
        gpu_id: jobs[0]
        for gpu_id, jobs in holders.items()
        if len(jobs) == 1 and jobs[0].memory_surge is None and gpu_id in empty
    }
    before = [empty[gpu_id] for gpu_id in single]
    made = make_records(
        GpuView,
        len(single),
        gpu=[entry.gpu for entry in before],
        node_id=[entry.node_id for entry in before],
        job_ids=[(job.request.job_id,) for job in single.values()],
        memory_reserved_bytes=[job.memory_reserved_bytes for job in single.values()],
    )
    others = {
        gpu_id: _held_by_all(empty[gpu_id], jobs)
        for gpu_id, jobs in holders.items()
        if gpu_id in empty and gpu_id not in single
    }
    return dict(zip(single, made, strict=True)) | others


def _held_by_all(empty: GpuView, holders: Sequence[RunningJob]) -> GpuView:
    return GpuView(
        gpu=empty.gpu,
        node_id=empty.node_id,
        job_ids=tuple([job.request.job_id for job in holders]),
        memory_reserved_bytes=claimed_bytes([(job.memory_reserved_bytes, job.memory_surge) for job in holders]),
        memory_surge_bytes=largest_surge_bytes(job.memory_surge for job in holders),
    )


def _holders(running: Iterable[RunningJob]) -> Mapping[str, list[RunningJob]]:
    holders: dict[str, list[RunningJob]] = defaultdict(list)
    for job in running:
        for assignment in job.assignments:
            holders[assignment.gpu_id].append(job)
    return holders


def _host_use(gpus: Mapping[str, GpuView], running: Iterable[RunningJob]) -> Mapping[str, HostUse]:
    """Spread what each job needs of hosts over the nodes of its GPUs."""
    use: dict[str, HostUse] = defaultdict(HostUse)
    for job in running:
        if not job.request.cpu_cores and not job.request.host_memory_bytes:
            continue
        node_ids = Counter(gpus[one.gpu_id].node_id for one in job.assignments if one.gpu_id in gpus)
        for node_id, gpus_here in node_ids.items():
            share, so_far = host_share(job.request, gpus_here, len(job.assignments)), use[node_id]
            use[node_id] = HostUse(
                cpu_cores=so_far.cpu_cores + share.cpu_cores,
                host_memory_bytes=so_far.host_memory_bytes + share.host_memory_bytes,
            )
    return use


def _deferral(job: PendingJob, now_ms: int) -> Hold:
    reason = Reason(code="NOT_BEFORE", numbers={"wait_ms": job.not_before_ms - now_ms})
    return Hold(job_id=job.request.job_id, reason=reason, until_ms=job.not_before_ms)


def _decision_message(decision: Decision, accepted: Mapping[str, float], *, explain: bool) -> scheduling_pb2.Decision:
    message = scheduling_pb2.Decision(
        job_id=decision.job_id,
        reason=reason_message(decision.reason),
        candidates=candidate_messages(decision.candidates) if explain else (),
    )
    match decision:
        case Start():
            expected = decision.predicted_slowdown_ratio
            start = scheduling_pb2.StartDecision(**_shape(decision), predicted_slowdown_ratio=expected)
            if decision.trial_with:
                start.trial.CopyFrom(_trial_advice(decision, accepted))
            message.start.CopyFrom(start)
        case Reshape():
            message.reshape.CopyFrom(scheduling_pb2.ReshapeDecision(**_shape(decision)))
        case Stop():
            message.stop.checkpoint = decision.checkpoint
            message.stop.SetInParent()
        case Migrate():
            assignments = assignment_messages(decision.assignments)
            message.migrate.CopyFrom(scheduling_pb2.MigrateDecision(assignments=assignments))
        case Hold():
            message.hold.until_ms = decision.until_ms
            message.hold.SetInParent()
        case _:
            raise TypeError(f"{type(decision).__name__} has no message")
    return message


def _trial_advice(start: Start, accepted: Mapping[str, float]) -> scheduling_pb2.TrialAdvice:
    return scheduling_pb2.TrialAdvice(
        other_job_id=start.trial_with,
        trial_ms=TRIAL_MS,
        max_slowdown_ratio=accepted[start.job_id],
        other_max_slowdown_ratio=accepted[start.trial_with],
    )


def _shape(decision: Start | Reshape) -> dict[str, Any]:
    return {
        "assignments": assignment_messages(decision.assignments),
        "micro_batch_size": decision.micro_batch_size,
        "accumulation_steps": decision.accumulation_steps,
    }
