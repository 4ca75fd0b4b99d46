"""Step times of a job at every number of GPUs that it may have, with what each is based on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.capacity import samples_per_gpu
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.measured_speeds import MeasuredSpeeds, StepTimeBasis
from scheduler_service.core.records import JobPrediction
from scheduler_service.core.replica_groups import server_counts

COUNTS_SHOWN_MAX: Final = 16
_BASES: Mapping[StepTimeBasis, scheduling_pb2.StepTimeBasis.ValueType] = {
    StepTimeBasis.MEASURED: scheduling_pb2.STEP_TIME_BASIS_MEASURED,
    StepTimeBasis.FITTED: scheduling_pb2.STEP_TIME_BASIS_FITTED,
    StepTimeBasis.CORRECTED: scheduling_pb2.STEP_TIME_BASIS_CORRECTED,
    StepTimeBasis.FORESEEN: scheduling_pb2.STEP_TIME_BASIS_FORESEEN,
}


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
    is_present = job.micro_batch_size > 0 and gpus == (job.held_gpus or job.request.gpus)
    return job.micro_batch_size if is_present else samples_per_gpu(job.request, gpus)


def _message(speeds: MeasuredSpeeds, prediction: JobPrediction, shape: tuple[int, int]) -> scheduling_pb2.KnownStepTime:
    basis, measurements = speeds.basis(prediction, shape)
    return scheduling_pb2.KnownStepTime(
        gpus=shape[0],
        micro_batch_size=shape[1],
        step_ms=prediction.step_ms[shape],
        basis=_BASES[basis],
        measurements=measurements,
    )
