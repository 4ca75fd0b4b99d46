"""Stateless decisions: a snapshot in, decisions out, nothing kept. The same policies and plan check as live."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.predictor_client import PredictorClient
from scheduler_service.core.commands import PairMember, RequestPairPredictions, RequestPrediction
from scheduler_service.core.decisions import Decision, Hold, Migrate, Reshape, Start, Stop, unfolded
from scheduler_service.core.ledger import host_share
from scheduler_service.core.plan_check import check_plan
from scheduler_service.core.prediction_store import PredictionStore
from scheduler_service.core.records import Gpu, Node, Reason, Share
from scheduler_service.core.view import GpuView, HostUse, PendingJob, RunningJob, SchedulingView
from scheduler_service.errors import MissingPredictionsError, PredictorError
from scheduler_service.grpc_api import policies, translate_snapshot, validation
from scheduler_service.grpc_api.translate_jobs import assignment_messages, candidate_messages, reason_message, to_json

# When the caller sets no deadline.
DEFAULT_DEADLINE_S = 10.0
# Left for deciding after the predictor has answered.
_DECIDING_RATIO = 0.8
_NAMED_JOBS_MAX = 20


async def decide(
    request: scheduling_pb2.DecideRequest, *, predictor: PredictorClient | None, seconds_left: float | None
) -> scheduling_pb2.DecideResponse:
    """Decide on a snapshot.

    Args:
        request: Snapshot, policy and its parameters.
        predictor: Asked for predictions that the snapshot lacks; None = there is none.
        seconds_left: Until the caller's deadline.

    Raises:
        InvalidRequestError: Bad snapshot, unknown policy or parameter.
        MissingPredictionsError: The predictor could not be asked, or did not answer in time.
    """
    snapshot = request.snapshot
    parameters = policies.read_parameters(request.parameters)
    effective = policies.effective_parameters(request.policy, parameters)
    validation.require(translate_snapshot.snapshot_violations(snapshot))
    if request.explain:
        validation.require(translate_snapshot.explanation_violations(snapshot))
    if request.validate_only:
        return scheduling_pb2.DecideResponse(effective_parameters=effective)
    store = _given_predictions(snapshot)
    asked = await _ask_missing(snapshot, store, predictor, (seconds_left or DEFAULT_DEADLINE_S) * _DECIDING_RATIO)
    view = _view(snapshot, store, explain=request.explain)
    policy = policies.make(request.policy, parameters)
    # A policy over a large snapshot takes its time; agents and users must not wait for it.
    decisions = await asyncio.to_thread(policy.decide, view)
    plan = check_plan(view, {job.request.job_id: job for job in view.pending}, decisions)
    deferrals = [_deferral(job, snapshot.now_ms) for job in view.deferred]
    return scheduling_pb2.DecideResponse(
        decisions=[_decision_message(one, explain=request.explain) for one in (*unfolded(plan.decisions), *deferrals)],
        effective_parameters=effective,
        model_version=asked,
    )


def _given_predictions(snapshot: scheduling_pb2.Snapshot) -> PredictionStore:
    store = PredictionStore()
    for job in snapshot.job_predictions:
        store.put_job(translate_snapshot.job_prediction(job))
    for pair in snapshot.pair_predictions:
        store.put_pair(translate_snapshot.pair_prediction(pair))
    return store


async def _ask_missing(
    snapshot: scheduling_pb2.Snapshot, store: PredictionStore, predictor: PredictorClient | None, deadline_s: float
) -> str:
    """Fill the store; return the model version of the answers, empty when nothing was asked."""
    devices = {gpu.device: gpu.memory_bytes for node in snapshot.nodes for gpu in node.gpus}
    jobs = translate_snapshot.snapshot_jobs(snapshot)
    missing = _missing(jobs, devices, store)
    if not missing:
        return ""
    unaskable = [job.job_id for (_, _), job in missing.items() if predictor is None or not job.graph_sha256]
    if unaskable or predictor is None:
        raise _refusal(unaskable, "no predictor is configured, or no graph is named")
    try:
        answers = await asyncio.wait_for(
            asyncio.gather(*(predictor.predict_job(_question(*key, job, devices)) for key, job in missing.items())),
            timeout=deadline_s,
        )
        for answer in answers:
            store.put_job(answer)
        for device in devices:
            for pair in await _ask_pairs(jobs, device, store, predictor, deadline_s):
                store.put_pair(pair)
    except (PredictorError, TimeoutError) as error:
        cause = error.message if isinstance(error, PredictorError) else "the predictor did not answer in time"
        raise _refusal([job.job_id for job in missing.values()], cause) from error
    return answers[0].model_version


def _missing(
    jobs: Iterable[scheduling_pb2.SnapshotJob], devices: Mapping[str, int], store: PredictionStore
) -> dict[tuple[str, str], scheduling_pb2.SnapshotJob]:
    """Return one job for every (key, device) that nothing is known about; jobs without a key run exclusively."""
    keyed = ((translate_snapshot.request(job).key, job) for job in jobs)
    return {(key, device): job for key, job in keyed if key for device in devices if store.job(key, device) is None}


def _question(key: str, device: str, job: scheduling_pb2.SnapshotJob, devices: Mapping[str, int]) -> RequestPrediction:
    request = translate_snapshot.request(job)
    sub_batches = {-(-request.batch // (gpus * parts)) for gpus in request.allowed_gpus for parts in (1, 2, 4, 8)}
    return RequestPrediction(
        key=key,
        device=device,
        device_memory_bytes=devices[device],
        graph_sha256=job.graph_sha256,
        settings=to_json(job.settings),
        sub_batches=tuple(sorted(sub_batches)),
        gpus=request.allowed_gpus,
    )


async def _ask_pairs(
    jobs: Iterable[scheduling_pb2.SnapshotJob],
    device: str,
    store: PredictionStore,
    predictor: PredictorClient,
    deadline_s: float,
) -> tuple[Any, ...]:
    members: dict[str, PairMember] = {}
    for job in jobs:
        request = translate_snapshot.request(job)
        if request.key and job.graph_sha256 and request.share is not Share.NEVER:
            members[request.key] = PairMember(
                key=request.key, graph_sha256=job.graph_sha256, settings=to_json(job.settings)
            )
    new_keys = tuple(key for key in members if any(store.pair(key, other, device) is None for other in members))
    if not new_keys:
        return ()
    question = RequestPairPredictions(device=device, members=tuple(members.values()), new_keys=new_keys)
    return await predictor.predict_pairs(question, deadline_s=deadline_s)


def _refusal(job_ids: Iterable[str], cause: str) -> MissingPredictionsError:
    named = sorted(set(job_ids))
    listed = ", ".join(named[:_NAMED_JOBS_MAX]) + (f" and {len(named) - _NAMED_JOBS_MAX} more" * (len(named) > 20))
    return MissingPredictionsError(
        f"no prediction for {listed or 'some jobs'}: {cause}; put job_predictions into the snapshot, name graphs that "
        "the predictor has, or leave the jobs' keys empty so that they run exclusively",
        metadata={"job_ids": ",".join(named[:_NAMED_JOBS_MAX])},
    )


def _view(snapshot: scheduling_pb2.Snapshot, store: PredictionStore, *, explain: bool) -> SchedulingView:
    nodes = {one.node_id: translate_snapshot.node(one) for one in snapshot.nodes}
    all_gpus = {gpu.gpu_id: gpu for node in nodes.values() for gpu in node.gpus}
    running = {one.job.job_id: _running(one, all_gpus, store) for one in snapshot.running}
    usable = {node_id: node for node_id, node in nodes.items() if node.schedulable}
    holders = _holders(running.values())
    gpus = {
        gpu.gpu_id: _gpu_view(gpu, node, holders.get(gpu.gpu_id, ()))
        for node in usable.values()
        for gpu in node.gpus
        if gpu.healthy
    }
    waiting = sorted(
        (translate_snapshot.pending_job(one) for one in snapshot.pending),
        key=lambda job: (job.submitted_at_ms, job.request.job_id),
    )
    return SchedulingView(
        now_ms=snapshot.now_ms,
        nodes=usable,
        gpus=gpus,
        pending=tuple(job for job in waiting if job.not_before_ms <= snapshot.now_ms),
        deferred=tuple(job for job in waiting if job.not_before_ms > snapshot.now_ms),
        running=running,
        predictions=store,
        seed=snapshot.seed,
        explain=explain,
        free_gpu_ids={gpu_id for gpu_id, view in gpus.items() if not view.job_ids},
        host_use=_host_use(gpus, running.values()),
        slowdown_ewma_ratios={gpu.gpu_id: gpu.slowdown_ewma_ratio for node in snapshot.nodes for gpu in node.gpus},
    )


def _running(message: scheduling_pb2.SnapshotRunning, gpus: Mapping[str, Gpu], store: PredictionStore) -> RunningJob:
    gpu = gpus[message.assignments[0].gpu_id]
    key = translate_snapshot.request(message.job).key
    return translate_snapshot.running_job(message, gpu=gpu, prediction=store.job(key, gpu.device))


def _gpu_view(gpu: Gpu, node: Node, holders: Sequence[RunningJob]) -> GpuView:
    return GpuView(
        gpu=gpu,
        node_id=node.node_id,
        job_ids=tuple(job.request.job_id for job in holders),
        memory_reserved_bytes=sum(job.memory_reserved_bytes for job in holders),
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


def _decision_message(decision: Decision, *, explain: bool) -> scheduling_pb2.Decision:
    message = scheduling_pb2.Decision(
        job_id=decision.job_id,
        reason=reason_message(decision.reason),
        candidates=candidate_messages(decision.candidates) if explain else (),
    )
    match decision:
        case Start():
            message.start.CopyFrom(scheduling_pb2.StartDecision(**_shape(decision)))
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


def _shape(decision: Start | Reshape) -> dict[str, Any]:
    return {
        "assignments": assignment_messages(decision.assignments),
        "sub_batch": decision.sub_batch,
        "accumulation_steps": decision.accumulation_steps,
    }
