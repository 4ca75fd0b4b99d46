"""What a job's message says of its future: the end by a target loss, step times on other GPUs, a missed deadline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.cluster_view.capacity import samples_per_gpu
from scheduler_service.core.cluster_view.replica_groups import server_counts
from scheduler_service.core.cluster_view.step_times import step_ms_of
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.training_end_records import TrainingEnd
from scheduler_service.core.lifecycle.training_ends import LOSSES_MIN
from scheduler_service.core.predictions.measured_speeds import MeasuredSpeeds, StepTimeBasis
from scheduler_service.core.records import JobPrediction, Phase
from scheduler_service.core.state import ClusterState

_REASONS: Final[Mapping[str, str]] = {
    "NOT_FORESEEABLE": "most curves through the losses never reach the target, or too few losses are known",
    "NO_PREDICTOR": "no predictor is configured",
}
COUNTS_SHOWN_MAX: Final = 16
_BASES: Mapping[StepTimeBasis, scheduling_pb2.StepTimeBasis.ValueType] = {
    StepTimeBasis.MEASURED: scheduling_pb2.STEP_TIME_BASIS_MEASURED,
    StepTimeBasis.FITTED: scheduling_pb2.STEP_TIME_BASIS_FITTED,
    StepTimeBasis.CORRECTED: scheduling_pb2.STEP_TIME_BASIS_CORRECTED,
    StepTimeBasis.FORESEEN: scheduling_pb2.STEP_TIME_BASIS_FORESEEN,
}


def training_end_message(job: JobRecord) -> scheduling_pb2.TrainingEnd | None:
    """Return when a job reaches its target loss; None = it has no target."""
    if not job.request.target_loss:
        return None
    end = job.reported.training_end or TrainingEnd()
    return scheduling_pb2.TrainingEnd(
        steps_total=end.steps_total,
        steps_lower=end.steps_lower,
        steps_upper=end.steps_upper,
        confidence=end.confidence,
        reliable=end.is_reliable,
        reached=end.is_reached,
        losses=end.losses_fitted,
        unknown_reason="" if end.steps_total else _unknown_reason(end),
    )


def _unknown_reason(end: TrainingEnd) -> str:
    if end.code:
        return _REASONS.get(end.code, f"the predictor did not say ({end.code})")
    if len(end.losses) < LOSSES_MIN:
        return f"{len(end.losses)} of at least {LOSSES_MIN} losses were reported"
    return "the predictor has not answered yet"


def step_time_messages(
    speeds: MeasuredSpeeds, prediction: JobPrediction, job: JobRecord
) -> list[scheduling_pb2.KnownStepTime]:
    """Return the step time at each number of GPUs; the whole share of the batch at once, or as the job runs."""
    request = job.request
    if server_counts(request):
        return list(islice(_task_messages(speeds, prediction, job), COUNTS_SHOWN_MAX))
    counts = sorted({*request.allowed_gpus, request.gpus})[:COUNTS_SHOWN_MAX]
    if len(counts) == 1 and not speeds.sound_step_ms(request.key, prediction.device):
        return []
    shapes = [(gpus, _micro_batch_size(job, gpus)) for gpus in counts]
    return [_message(speeds, prediction, shape) for shape in shapes if shape in prediction.step_ms]


def _task_messages(
    speeds: MeasuredSpeeds, prediction: JobPrediction, job: JobRecord
) -> Iterator[scheduling_pb2.KnownStepTime]:
    """Yield the step times with parameter servers, of which nothing is foreseen."""
    counts = sorted({*job.request.allowed_gpus, job.request.gpus})
    for workers, servers in product(counts, server_counts(job.request)):
        found = speeds.task_basis(prediction, (workers, servers))
        if found is not None:
            yield scheduling_pb2.KnownStepTime(
                gpus=workers,
                servers=servers,
                micro_batch_size=_micro_batch_size(job, workers),
                step_ms=prediction.task_step_ms[workers, servers],
                basis=_BASES[found[0]],
                measurements=found[1],
            )


def _micro_batch_size(job: JobRecord, gpus: int) -> int:
    is_present = job.shape.micro_batch_size > 0 and gpus == (job.held_gpus or job.request.gpus)
    return job.shape.micro_batch_size if is_present else samples_per_gpu(job.request, gpus)


def _message(speeds: MeasuredSpeeds, prediction: JobPrediction, shape: tuple[int, int]) -> scheduling_pb2.KnownStepTime:
    basis, measurements = speeds.basis(prediction, shape)
    return scheduling_pb2.KnownStepTime(
        gpus=shape[0],
        micro_batch_size=shape[1],
        step_ms=prediction.step_ms[shape],
        basis=_BASES[basis],
        measurements=measurements,
    )


def deadline_missed_by_ms(state: ClusterState, job: JobRecord) -> int | None:
    """Return by how much a living job misses its deadline even if nothing keeps it from running from now on.

    Args:
        state: Knows the predictions.
        job: Its steps left take what they take now, or else what is predicted alone on the fastest type of device.

    Returns:
        Milliseconds; None = it has no deadline, has ended, or may still keep it.
    """
    deadline_at_ms = job.request.terms.deadline_at_ms
    if not deadline_at_ms or job.has_ended:
        return None
    missed_by_ms = state.now_ms + (_remaining_ms(state, job) or 0) - deadline_at_ms
    return round(missed_by_ms) if missed_by_ms > 0 else None


def _remaining_ms(state: ClusterState, job: JobRecord) -> float | None:
    steps = max(job.request.steps_total - job.steps_done, 0)
    if job.phase is Phase.RUNNING and job.pace_ms:
        return steps * job.pace_ms
    predictions = (state.predictions.job(job.request.key, device) for device in state.devices)
    found = [step_ms_of(job.request, prediction, gpus=job.request.gpus) for prediction in predictions]
    return min((steps * step_ms for step_ms in found if step_ms is not None), default=None)
