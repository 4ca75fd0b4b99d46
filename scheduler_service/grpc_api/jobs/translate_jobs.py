"""Jobs between contract and core."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from cotenant.job_settings import JobSettings
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.job_specs import kept_settings, key_of, measured_key, spec_message
from scheduler_service.adapters.proto_enums import LEVEL_TO_PROTO, PHASE_TO_PROTO, SHARE_FROM_PROTO
from scheduler_service.core.cluster_view.shared_ways import place_of
from scheduler_service.core.decisions import Candidate
from scheduler_service.core.event_handling.time_limits import ran_ms
from scheduler_service.core.jobs.job_parts import JobEvent
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.replica_terms import NO_REPLICAS, STRAGGLER_WINDOW_MS, ReplicaTerms
from scheduler_service.core.jobs.unsaved_work import unsaved_work
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import (
    DEFAULT_MAX_SLOWDOWN_RATIO,
    Assignment,
    JobPrediction,
    JobRequest,
    Level,
    Phase,
    Reason,
    TaskDemand,
)
from scheduler_service.core.state import ClusterState
from scheduler_service.grpc_api.jobs.job_forecasts import (
    deadline_missed_by_ms,
    step_time_messages,
    training_end_message,
)
from scheduler_service.grpc_api.jobs.job_reasons import present_reason, reported_reason
from scheduler_service.grpc_api.visibility import SAID

DEFAULT_RESTART_LIMIT = 5
# The central interval that the predictor answers with unless asked otherwise.
INTERVAL_CONFIDENCE = 0.9
KNOWN_SPECS_MAX = 4_096
KNOWN_SPEC_BYTES_MAX = 4_096
NEIGHBOURS_MAX = 16
"""Jobs named on one GPU that was looked at."""
_SAID_BY_THE_NODE = frozenset({"LAUNCH_REFUSED", "LAUNCH_REFUSED_FOR_GOOD", "JOB_ERROR"})


def job_request(job_id: str, spec: scheduling_pb2.JobSpec) -> JobRequest:
    """Return what policies may know of a spec."""
    gpus = spec.gpus or 1
    return JobRequest(
        job_id=job_id,
        key=key_of(spec.graph_sha256, kept_settings(spec)) or measured_key(spec),
        tenant=spec.tenant,
        name=spec.name,
        gpus=gpus,
        allowed_gpus=tuple(sorted(set(spec.allowed_gpus))) or (gpus,),
        global_batch_size=spec.settings.global_batch_size or gpus,
        steps_total=spec.steps_total,
        target_loss=spec.target_loss,
        share=SHARE_FROM_PROTO[spec.share],
        max_slowdown_ratio=spec.max_slowdown_ratio or DEFAULT_MAX_SLOWDOWN_RATIO,
        cpu_cores=spec.cpu_cores + spec.servers.count * spec.servers.cpu_cores,
        host_memory_bytes=spec.host_memory_bytes + spec.servers.count * spec.servers.host_memory_bytes,
        memory_request_bytes=spec.memory_bytes,
        restart_limit=spec.restart_limit or DEFAULT_RESTART_LIMIT,
        no_trial=spec.no_trial,
        no_preparation=spec.no_preparation,
        releases_memory=spec.releases_memory,
        takes_whole_batch=spec.takes_whole_batch,
        migration_cost_ms=spec.migration_cost_ms,
        server_demand=server_demand(spec),
        terms=queue_terms(spec),
        replicas=replica_terms(spec),
    )


def server_demand(spec: scheduling_pb2.JobSpec) -> TaskDemand | None:
    """Return what each parameter server of a job asks of its host; None = it has none."""
    servers = spec.servers
    if not spec.HasField("servers"):
        return None
    return TaskDemand(cpu_cores=servers.cpu_cores, host_memory_bytes=servers.host_memory_bytes)


def replica_terms(spec: scheduling_pb2.JobSpec) -> ReplicaTerms:
    """Return what a spec asks of the group of a job's processes."""
    if not spec.HasField("servers") and not spec.straggler_ratio:
        return NO_REPLICAS
    count = spec.servers.count
    allowed = tuple(sorted(set(spec.servers.allowed_counts))) or ((count,) if count else ())
    return ReplicaTerms(
        servers=count,
        allowed_servers=allowed,
        straggler_ratio=spec.straggler_ratio,
        straggler_window_ms=spec.straggler_window_ms or STRAGGLER_WINDOW_MS,
    )


def queue_terms(spec: scheduling_pb2.JobSpec) -> QueueTerms:
    """Return what a spec asks of the queue."""
    return QueueTerms(
        priority=spec.priority,
        is_held=spec.held,
        after_job_ids=tuple(dict.fromkeys(spec.after_job_ids)),
        after_any=spec.after_any,
        array_id=spec.array_id,
        array_index=spec.array_index,
        array_running_max=spec.array_running_max,
        time_limit_ms=spec.time_limit_ms,
        deadline_at_ms=spec.deadline_at_ms,
        restarts_stalled=spec.restarts_stalled,
        devices=tuple(sorted(set(spec.allowed_devices))),
        retry_of=spec.retry_of,
        across_nodes=spec.across_nodes,
    )


def reason_message(reason: Reason) -> scheduling_pb2.Reason:
    """Return a reason as data and in words."""
    return scheduling_pb2.Reason(
        code=reason.code,
        numbers=dict(reason.numbers),
        job_ids=reason.job_ids,
        gpu_ids=reason.gpu_ids,
        message=describe_reason(reason),
    )


def _job_reason_message(state: ClusterState, job: JobRecord) -> scheduling_pb2.Reason:
    """Return why a job is where it is; the owner of a refused job reads the agent's very words."""
    message = reason_message(reported_reason(state, job, present_reason(state, job)))
    said = job.exit.exit_detail
    if message.code == "JOB_ERROR":
        # The sentence has the code already; what is left names a command or a rank.
        said = said.removeprefix(f"exit code {job.exit.exit_code}").lstrip(":; ")
    if message.code in _SAID_BY_THE_NODE and said:
        message.message += f"{SAID}{said}"
    return message


def assignment_messages(assignments: Iterable[Assignment]) -> list[scheduling_pb2.Assignment]:
    """Return which rank has which GPU."""
    return [scheduling_pb2.Assignment(gpu_id=assignment.gpu_id, rank=assignment.rank) for assignment in assignments]


class _KnownSpecs:
    """The specs of the jobs that were shown last: to read one from its stored form takes half the time of a job."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Mapping[str, object], JobSettings | None, scheduling_pb2.JobSpec]]
        self._known = OrderedDict()

    def of(self, job: JobRecord) -> scheduling_pb2.JobSpec:
        """Return the spec of a job, not to be changed."""
        known = self._known.get(job.job_id)
        # Another cluster in this process has other jobs of the same ids.
        if known is not None and known[0] is job.submission.launch and known[1] is job.submission.settings:
            return known[2]
        spec = spec_message(job.submission.launch, job.submission.settings)
        if spec.ByteSize() <= KNOWN_SPEC_BYTES_MAX:
            self._known[job.job_id] = job.submission.launch, job.submission.settings, spec
            while len(self._known) > KNOWN_SPECS_MAX:
                self._known.popitem(last=False)
        return spec


_spec_of = _KnownSpecs().of


def job_message(state: ClusterState, job: JobRecord) -> scheduling_pb2.Job:
    """Return a job with its reason, predictions and co-located jobs."""
    return scheduling_pb2.Job(
        job_id=job.job_id,
        spec=_spec_of(job),
        phase=PHASE_TO_PROTO[job.phase],
        reason=_job_reason_message(state, job),
        submitted_at_ms=job.times.submitted_at_ms,
        first_started_at_ms=job.times.first_started_at_ms,
        finished_at_ms=job.times.finished_at_ms,
        attempt=job.attempt,
        assignments=assignment_messages(job.assignments),
        micro_batch_size=job.shape.micro_batch_size,
        steps_done=job.steps_done,
        step_ms=job.step_ms,
        loss=job.reported.loss or 0.0,
        solo_step_ms=job.solo_step_ms,
        measured_slowdown_ratio=job.measured.observed_slowdown_ratio,
        predicted_slowdown_ratio=job.shape.predicted_slowdown_ratio,
        co_located_jobs=_neighbour_messages(state, job),
        predictions=_prediction_messages(state, job),
        attained_gpu_ms=job.attained_gpu_ms,
        restarts=job.counts.restarts,
        out_of_memory_count=job.counts.out_of_memory,
        job_key=job.request.key,
        exit_class=job.exit.exit_class,
        exit_code=job.exit.exit_code,
        memory_peak_bytes=job.reported.memory_peak_bytes,
        utilization_ratio=job.reported.utilization_ratio or 0.0,
        node_id=job.node_ids[0] if job.node_ids else "",
        node_ids=job.node_ids if len(job.node_ids) > 1 else (),
        memory_reserved_bytes=job.shape.memory_reserved_bytes,
        memory_floor_bytes=job.request.memory_floor_bytes,
        pause=_pause_message(job),
        paused_ms=job.measured.paused_ms,
        stalled_since_ms=job.measured.stalled_since_ms if job.holds_gpus else 0,
        ran_ms=ran_ms(job, state.now_ms),
        deadline_missed_by_ms=deadline_missed_by_ms(state, job),
        exit_detail=job.exit.exit_detail,
        memory_autopsy=_autopsy_message(job),
        training_end=training_end_message(job),
        servers=job.request.replicas.servers,
        stragglers_replaced=job.counts.stragglers_replaced,
        script_steps_total=job.reported.script_steps_total,
        **{name: round(value) for name, value in unsaved_work(job, state.now_ms).items()},
    )


def _autopsy_message(job: JobRecord) -> scheduling_pb2.MemoryAutopsy | None:
    found = job.reported.memory_autopsy
    if found is None:
        return None
    return scheduling_pb2.MemoryAutopsy(
        attempt=found.attempt,
        gpu_id=found.gpu_id,
        gpu_memory_bytes=found.gpu_memory_bytes,
        micro_batch_size=found.micro_batch_size,
        predicted_bytes=found.predicted_bytes,
        predicted_upper_99_bytes=found.predicted_upper_99_bytes,
        reserved_bytes=found.reserved_bytes,
        peak_bytes=found.peak_bytes,
        available_bytes=found.available_bytes,
        co_located_job_ids=found.co_located_ids,
        detail=found.detail,
        micro_batch_size_max=found.micro_batch_size_max,
    )


def _pause_message(job: JobRecord) -> scheduling_pb2.JobPause | None:
    pause = job.pause
    if pause is None or job.phase is not Phase.PAUSED:
        return None
    return scheduling_pb2.JobPause(
        since_ms=pause.paused_at_ms,
        until_ms=pause.until_ms,
        reason=reason_message(pause.reason),
        resuming=pause.is_resuming,
    )


def _neighbour_messages(state: ClusterState, job: JobRecord) -> list[scheduling_pb2.CoLocatedJob]:
    if not job.holds_gpus:
        return []
    view = state.gpus.get(job.gpu_ids[0]) if job.gpu_ids else None
    place = place_of(view.gpu) if view is not None else ""
    others = state.occupancy.neighbours(job)
    messages = []
    for other_id in others:
        message = _neighbour_message(state, job, state.jobs[other_id], place)
        # With several co-located jobs the measured effects cannot be separated.
        if len(others) == 1 and job.measured.observed_slowdown_ratio is not None:
            message.measured_slowdown_ratio = job.measured.observed_slowdown_ratio
        messages.append(message)
    return messages


def _neighbour_message(
    state: ClusterState, job: JobRecord, other: JobRecord, place: str
) -> scheduling_pb2.CoLocatedJob:
    """Return what is expected of a job co-located with another one."""
    message = scheduling_pb2.CoLocatedJob(job_id=other.job_id)
    sizes = job.shape.micro_batch_size, other.shape.micro_batch_size
    pair = state.predictions.pair(job.request.key, other.request.key, place, *sizes)
    if pair is not None:
        message.predicted_slowdown_ratio = pair.slowdown_ratio
        message.predicted_slowdown_upper_ratio = pair.upper_ratio
        message.level = LEVEL_TO_PROTO[pair.level]
        message.times_measured = pair.times_measured
    caused = state.predictions.pair(other.request.key, job.request.key, place, *reversed(sizes))
    if caused is not None:
        message.caused_slowdown_ratio = caused.slowdown_ratio
    return message


def name_neighbours(state: ClusterState, job: JobRecord, candidates: Iterable[scheduling_pb2.Candidate]) -> None:
    """Add to every GPU that was looked at which jobs are there, and what is expected of the job next to each."""
    for candidate in candidates:
        view = state.gpus.get(candidate.gpu_id)
        if view is None:
            continue
        there = [state.jobs[name] for name in view.job_ids if name != job.job_id and name in state.jobs]
        candidate.co_located_jobs.extend(
            _neighbour_message(state, job, other, place_of(view.gpu)) for other in there[:NEIGHBOURS_MAX]
        )


def _prediction_messages(state: ClusterState, job: JobRecord) -> list[scheduling_pb2.JobPrediction]:
    if not job.request.key:
        return []
    found = (state.predictions.job(job.request.key, device) for device in sorted(state.devices))
    return [_prediction_message(state, prediction, job) for prediction in found if prediction is not None]


def _prediction_message(state: ClusterState, prediction: JobPrediction, job: JobRecord) -> scheduling_pb2.JobPrediction:
    micro_batch_size = job.shape.micro_batch_size or job.request.global_batch_size // job.request.gpus
    memory = prediction.memory.get(micro_batch_size) or prediction.memory.get(job.request.global_batch_size)
    predicted_ms = state.predictions.speeds.foreseen(prediction.key, prediction.device)
    step_ms = predicted_ms.get((1, micro_batch_size)) or predicted_ms.get((1, job.request.global_batch_size))
    level, in_domain = LEVEL_TO_PROTO[prediction.level], prediction.in_domain
    not_calibrated = prediction.range_not_calibrated
    # What was measured here once has a value and no interval.
    is_one_value = (
        prediction.utilization_lower_ratio == prediction.utilization_upper_ratio and prediction.level is Level.OBSERVED
    )
    message = scheduling_pb2.JobPrediction(
        device=prediction.device,
        prediction_id=prediction.prediction_id,
        model_version=prediction.model_version,
        utilization_ratio=resources_pb2.Estimate(
            value=prediction.utilization_ratio,
            lower=prediction.utilization_lower_ratio,
            upper=prediction.utilization_upper_ratio,
            confidence=0.0 if is_one_value else INTERVAL_CONFIDENCE,
            level=level,
            in_domain=in_domain,
            range_not_calibrated=not_calibrated,
            unusual_features=prediction.unusual_features,
        ),
        step_times=step_time_messages(state.predictions.speeds, prediction, job),
    )
    if memory is not None:
        message.memory_bytes.value = memory.memory_bytes
        message.memory_bytes.upper_99 = memory.memory_bytes_upper_99
        message.memory_bytes.level, message.memory_bytes.in_domain = level, in_domain
        message.memory_bytes.range_not_calibrated = not_calibrated
    if step_ms is not None:
        estimate = resources_pb2.Estimate(
            value=step_ms,
            lower=prediction.step_ms_lower,
            upper=prediction.step_ms_upper,
            confidence=INTERVAL_CONFIDENCE if prediction.step_ms_upper else 0.0,
            level=level,
            in_domain=in_domain,
            range_not_calibrated=not_calibrated,
        )
        message.step_ms.CopyFrom(estimate)
    return message


def candidate_messages(candidates: Iterable[Candidate]) -> list[scheduling_pb2.Candidate]:
    """Return the GPUs as they were looked at."""
    return [
        scheduling_pb2.Candidate(
            gpu_id=candidate.gpu_id,
            feasible=candidate.feasible,
            reason=reason_message(candidate.reason),
            cost=candidate.cost,
            chosen=candidate.chosen,
        )
        for candidate in candidates
    ]


def history_messages(history: Iterable[JobEvent]) -> list[scheduling_pb2.JobEvent]:
    """Return a job's story."""
    return [scheduling_pb2.JobEvent(at_ms=event.at_ms, kind=event.kind, message=event.message) for event in history]
