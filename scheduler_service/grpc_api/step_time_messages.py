"""Step times of a job at every number of GPUs that it may have, with what each is based on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.capacity import samples_per_gpu
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.measured_speeds import MeasuredSpeeds, StepTimeBasis
from scheduler_service.core.records import JobPrediction

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
    counts = sorted({*request.allowed_gpus, request.gpus})[:COUNTS_SHOWN_MAX]
    if len(counts) == 1 and not speeds.sound_step_ms(request.key, prediction.device):
        return []
    shapes = [(gpus, _micro_batch_size(job, gpus)) for gpus in counts]
    return [_message(speeds, prediction, shape) for shape in shapes if shape in prediction.step_ms]


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
