"""Questions to the predictor and its answers, between core and contract."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_calibration_message import calibration_message
from cotenant.device_facts_message import facts_message
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import settings_message
from cotenant.v1 import prediction_pb2, resources_pb2
from scheduler_service.adapters.proto_enums import LEVEL_FROM_PROTO
from scheduler_service.core.commands import (
    PairMember,
    RecordOutcome,
    RefreshPairs,
    RequestLossFit,
    RequestPairPredictions,
    RequestPrediction,
    RequestSpeedFit,
    RequestTaskSpeedFit,
)
from scheduler_service.core.fit_events import LossFitted, SpeedFitted, TaskSpeedFitted
from scheduler_service.core.records import (
    FOREIGN_LOAD,
    JobPrediction,
    MemoryPoint,
    MemoryRange,
    MemoryTriple,
    PairPrediction,
)

UNUSUAL_FEATURES_MAX: Final = 3
UNUSUAL_LENGTH_MAX: Final = 200
SPEED_MIN: Final = 1e-9
"""Steps per second below which a fitted speed is none."""


def job_question(command: RequestPrediction) -> prediction_pb2.PredictJobRequest:
    """Ask about one key on one device type."""
    return prediction_pb2.PredictJobRequest(
        request_id=str(uuid.uuid4()),
        graph_sha256=command.graph_sha256,
        settings=_settings(command.settings),
        device=command.device,
        device_memory_bytes=command.device_memory_bytes,
        micro_batch_sizes=command.micro_batch_sizes,
        calibration=_calibration(command.calibration),
        device_facts=facts_message(command.facts),
        find_memory_states=True,
    )


def job_prediction(command: RequestPrediction, answer: prediction_pb2.PredictJobResponse) -> JobPrediction:
    """Read the answer about one key; the full batch on one GPU is one of the points, more GPUs follow from one.

    Raises:
        ValueError: A number cannot be.
    """
    batch = command.settings.global_batch_size if command.settings is not None else 1
    memory = {point.micro_batch_size: _memory_point(point.memory_bytes) for point in answer.micro_batches}
    step_ms = {(1, point.micro_batch_size): _possible(point.step_ms.value) for point in answer.micro_batches}
    memory[batch] = _memory_point(answer.memory_bytes)
    step_ms[1, batch] = _possible(answer.step_ms.value)
    step_ms |= _on_more_gpus(command.gpus, batch, step_ms)
    utilization = answer.utilization_ratio
    return JobPrediction(
        key=command.key,
        device=command.device,
        utilization_ratio=_possible(utilization.value),
        utilization_lower_ratio=utilization.lower,
        utilization_upper_ratio=utilization.upper,
        sm_activity_ratio=answer.sm_activity_ratio.value if answer.HasField("sm_activity_ratio") else None,
        memory=memory,
        step_ms=step_ms,
        step_ms_lower=answer.step_ms.lower,
        step_ms_upper=answer.step_ms.upper,
        level=LEVEL_FROM_PROTO[max(utilization.level, answer.memory_bytes.level)],
        in_domain=utilization.in_domain and answer.memory_bytes.in_domain,
        model_version=answer.model_version,
        prediction_id=answer.prediction_id,
        range_not_calibrated=any(
            estimate.range_not_calibrated for estimate in (utilization, answer.memory_bytes, answer.step_ms)
        ),
        unusual_features=_unusual_features((answer.memory_bytes, utilization, answer.step_ms)),
        memory_triple=_memory_triple(command, answer, memory[batch]),
    )


def _memory_triple(
    command: RequestPrediction, answer: prediction_pb2.PredictJobResponse, memory: MemoryPoint
) -> MemoryTriple | None:
    """Return the states of memory as shares of the device, as much larger as the bound is than the estimate."""
    device_bytes, states = command.device_memory_bytes, answer.memory_states
    if not answer.HasField("memory_states") or device_bytes <= 0 or memory.memory_bytes <= 0:
        return None
    bound_ratio = memory.memory_bytes_upper_99 / memory.memory_bytes
    gamma_ratio = min(_possible(states.low_bytes) * bound_ratio / device_bytes, 1.0)
    return MemoryTriple(
        gamma_ratio=gamma_ratio,
        delta_ratio=min(_possible(states.extra_bytes) * bound_ratio / device_bytes, 1.0),
        high_state_ratio=min(_possible(states.high_state_ratio), 1.0),
    )


def _unusual_features(estimates: Iterable[resources_pb2.Estimate]) -> tuple[str, ...]:
    """Return each reason once, short and printable: what a predictor sends is kept and shown."""
    sent = itertools.chain.from_iterable(estimate.unusual_features for estimate in estimates)
    texts = dict.fromkeys("".join(filter(str.isprintable, text[:UNUSUAL_LENGTH_MAX])) for text in sent)
    return tuple(filter(None, texts))[:UNUSUAL_FEATURES_MAX]


def _on_more_gpus(
    counts: Sequence[int], batch: int, step_ms: Mapping[tuple[int, int], float]
) -> dict[tuple[int, int], float]:
    """Return the times of one optimizer step on several GPUs, each of which makes one pass of its share of the batch.

    Several GPUs are never asked about: a pass takes as long there as on one GPU, and exchanging gradients counts as
    free, since nothing is known of what connects the GPUs. A share that was not predicted gives no answer.
    """
    shares = {gpus: -(-batch // gpus) for gpus in counts if gpus > 1}
    return {
        (gpus, share): step_ms[1, share] / -(-batch // share) for gpus, share in shares.items() if (1, share) in step_ms
    }


def _memory_point(estimate: resources_pb2.Estimate) -> MemoryPoint:
    upper = estimate.upper_99 if estimate.HasField("upper_99") else estimate.upper
    value, bound = round(_possible(estimate.value)), round(_possible(upper))
    return MemoryPoint(memory_bytes=value, memory_bytes_upper_99=max(bound, value))


def memory_range(command: RequestPrediction, answer: prediction_pb2.PredictJobResponse) -> MemoryRange:
    """Read the memory of the smallest micro-batch that was asked about, else of the batch.

    Raises:
        ValueError: A number cannot be, or the answer lacks what was asked.
    """
    asked = min(command.micro_batch_sizes, default=0)
    found = [point.memory_bytes for point in answer.micro_batches if point.micro_batch_size == asked]
    if asked and not found:
        raise ValueError(f"no answer is given about a micro-batch of {asked}")
    estimate = found[0] if found else answer.memory_bytes
    point = _memory_point(estimate)
    # A lower end that is not given is 0, which refuses no job.
    lower_bytes = min(round(_possible(estimate.lower)), point.memory_bytes)
    return MemoryRange(lower_bytes=lower_bytes, upper_99_bytes=point.memory_bytes_upper_99)


def _possible(value: float, *, least: float = 0.0) -> float:
    """Return a number that a policy may reckon with; with NaN every comparison is false, which would let jobs share."""
    if not least <= value < inf:
        raise ValueError(f"{value} cannot be")
    return value


def pairs_question(command: RequestPairPredictions | RefreshPairs) -> prediction_pb2.PredictPairsRequest:
    """Ask how the members slow each other down; their keys serve as job ids, with the micro-batch if it is a part."""
    keys = {member.key for member in command.members if not member.micro_batch_size}
    return prediction_pb2.PredictPairsRequest(
        request_id=str(uuid.uuid4()),
        device=command.device,
        device_memory_bytes=command.device_memory_bytes,
        calibration=_calibration(command.calibration),
        sharing=resources_pb2.DeviceSharing.ValueType(command.sharing),
        device_facts=facts_message(command.facts),
        jobs=[_job_reference(member) for member in command.members],
        observed=[
            prediction_pb2.ObservedPair(
                victim_job_id=victim,
                other_job_id=other,
                slowdown_ratio=slowdown_ratio,
                quality_flags=(FOREIGN_LOAD,) if (victim, other) in command.doubted else (),
            )
            for victim, other, slowdown_ratio in command.observed
            if victim in keys and other in keys and slowdown_ratio > -1
        ],
    )


def _job_reference(member: PairMember) -> prediction_pb2.JobRef:
    settings = member.settings
    if settings is not None and member.micro_batch_size:
        # A pass of a part of the batch is a step of a smaller batch, over and over.
        settings = settings.at_batch(member.micro_batch_size)
    return prediction_pb2.JobRef(
        job_id=member_name(member),
        graph_sha256=member.graph_sha256,
        settings=_settings(settings),
        known_step_ms=member.solo_step_ms,
        known_utilization_ratio=member.utilization_ratio,
        known_memory_bytes=member.memory_bytes,
    )


def member_name(member: PairMember) -> str:
    """Return under which id a member is asked about."""
    return f"{member.key}@{member.micro_batch_size}" if member.micro_batch_size else member.key


def pair_predictions(
    device: str,
    answer: prediction_pb2.PredictPairsResponse,
    members: Sequence[PairMember] = (),
    sharing: DeviceSharing = DeviceSharing.UNSTATED,
) -> Iterator[PairPrediction]:
    """Read the matrices, victim by other; two parts of batches are left out.

    Raises:
        ValueError: The matrices do not fit their names, or a number cannot be.
    """
    size = len(answer.job_ids)
    columns: Sequence[Sequence[object]] = (answer.slowdown_ratio, answer.upper, answer.level, answer.in_domain)
    times = answer.times_measured or (0,) * (size * size)
    if any(len(column) != size * size for column in (*columns, times)):
        raise ValueError(f"matrices of {size} jobs must have {size * size} entries")
    parts = {member_name(member): (member.key, member.micro_batch_size) for member in members}
    named = [parts.get(name, (name, 0)) for name in answer.job_ids]
    for index in range(size * size):
        (victim, victim_size), (other, other_size) = named[index // size], named[index % size]
        if victim_size and other_size:
            continue
        yield PairPrediction(
            victim_key=victim,
            other_key=other,
            device=device,
            micro_batch_size=victim_size,
            other_micro_batch_size=other_size,
            slowdown_ratio=max(_possible(answer.slowdown_ratio[index], least=-inf), 0.0),
            upper_ratio=max(_possible(answer.upper[index], least=-inf), 0.0),
            level=LEVEL_FROM_PROTO[answer.level[index]],
            in_domain=answer.in_domain[index],
            model_version=answer.model_version,
            times_measured=times[index],
            sharing=sharing,
        )


def speed_question(command: RequestSpeedFit) -> prediction_pb2.FitSpeedModelRequest:
    """Ask for a curve through measured step times; GPUs without parameter servers exchange gradients by all-reduce."""

    def resources(gpus: int) -> prediction_pb2.TrainingResources:
        return prediction_pb2.TrainingResources(workers=gpus, global_batch_size=command.global_batch_size)

    return prediction_pb2.FitSpeedModelRequest(
        request_id=str(uuid.uuid4()),
        synchrony=prediction_pb2.TRAINING_SYNCHRONY_ALL_REDUCE,
        samples=[
            prediction_pb2.SpeedSample(resources=resources(gpus), steps_per_s=1_000.0 / step_ms)
            for gpus, step_ms in command.samples
        ],
        asked=[resources(gpus) for gpus in command.counts],
    )


def fitted_speeds(command: RequestSpeedFit, answer: prediction_pb2.FitSpeedModelResponse) -> SpeedFitted:
    """Read a curve.

    Raises:
        ValueError: A number cannot be.
    """
    step_ms = {
        one.resources.workers: 1_000.0 / _possible(one.steps_per_s, least=SPEED_MIN) for one in answer.predictions
    }
    return SpeedFitted(
        at_ms=0,
        key=command.key,
        device=command.device,
        step_ms=step_ms,
        error_ratio=_possible(answer.error_ratio),
    )


def task_speed_question(command: RequestTaskSpeedFit) -> prediction_pb2.FitSpeedModelRequest:
    """Ask for Eq. 4 through step times that were measured with parameter servers."""

    def resources(workers: int, servers: int) -> prediction_pb2.TrainingResources:
        return prediction_pb2.TrainingResources(
            workers=workers, servers=servers, global_batch_size=command.global_batch_size
        )

    return prediction_pb2.FitSpeedModelRequest(
        request_id=str(uuid.uuid4()),
        synchrony=prediction_pb2.TRAINING_SYNCHRONY_SYNCHRONOUS,
        samples=[
            prediction_pb2.SpeedSample(resources=resources(workers, servers), steps_per_s=1_000.0 / step_ms)
            for workers, servers, step_ms in command.samples
        ],
        asked=[resources(*tasks) for tasks in command.asked],
    )


def fitted_task_speeds(command: RequestTaskSpeedFit, answer: prediction_pb2.FitSpeedModelResponse) -> TaskSpeedFitted:
    """Read a curve over workers and parameter servers.

    Raises:
        ValueError: A number cannot be.
    """
    step_ms = {
        (one.resources.workers, one.resources.servers): 1_000.0 / _possible(one.steps_per_s, least=SPEED_MIN)
        for one in answer.predictions
    }
    return TaskSpeedFitted(
        at_ms=0, key=command.key, device=command.device, step_ms=step_ms, error_ratio=_possible(answer.error_ratio)
    )


def loss_question(command: RequestLossFit) -> prediction_pb2.FitLossCurveRequest:
    """Ask when a job reaches its target loss."""
    return prediction_pb2.FitLossCurveRequest(
        request_id=str(uuid.uuid4()),
        points=[prediction_pb2.CurvePoint(progress=steps, value=loss) for steps, loss in command.losses],
        metric=prediction_pb2.CURVE_METRIC_LOSS,
        epoch_length=command.epoch_steps,
        target_value=command.target_loss,
    )


def fitted_end(command: RequestLossFit, answer: prediction_pb2.FitLossCurveResponse) -> LossFitted:
    """Read when a job reaches its target, in steps.

    Raises:
        ValueError: A number cannot be.
    """
    epochs = (answer.epochs_total, answer.lower, answer.upper) if answer.HasField("epochs_total") else (0.0,) * 3
    if answer.reached:
        epochs = (answer.epochs_total,) * 3
    total, lower, upper = (_possible(epoch * command.epoch_steps) for epoch in epochs)
    return LossFitted(
        at_ms=0,
        job_id=command.job_id,
        steps_total=total,
        steps_lower=lower,
        steps_upper=upper,
        confidence=_possible(answer.confidence),
        is_reliable=answer.reliable or answer.reached,
        is_reached=answer.reached,
    )


def outcomes_message(commands: Sequence[RecordOutcome]) -> prediction_pb2.RecordOutcomesRequest:
    """Report what jobs really did."""
    return prediction_pb2.RecordOutcomesRequest(
        request_id=str(uuid.uuid4()),
        outcomes=[
            prediction_pb2.Outcome(
                prediction_id=command.prediction_id,
                utilization_ratio=command.utilization_ratio,
                memory_peak_bytes=command.memory_peak_bytes,
                step_ms_mean=command.step_ms_mean,
                window_ms=command.window_ms,
                quality_flags=command.quality_flags,
            )
            for command in commands
        ],
    )


def _calibration(calibration: DeviceCalibration | None) -> resources_pb2.DeviceCalibration | None:
    return None if calibration is None else calibration_message(calibration)


def _settings(settings: JobSettings | None) -> resources_pb2.JobSettings | None:
    return None if settings is None else settings_message(settings)
