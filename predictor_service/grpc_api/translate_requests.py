"""From messages to questions.

A message of a few megabytes may hold millions of empty parts: they are counted before any of them is read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cotenant.device_calibration import CalibrationError, DeviceCalibration
from cotenant.device_calibration_message import read_calibration_message
from cotenant.device_facts import DeviceFacts
from cotenant.device_facts_message import read_facts_message
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings, JobSettingsError
from cotenant.job_settings_message import read_settings
from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.errors import invalid_field
from predictor_service.features.job_settings import invalid_setting
from predictor_service.inference.memory_risk import RISK_JOBS_MAX
from predictor_service.inference.predictor import PAIR_JOBS_MAX
from predictor_service.inference.prepared_job import MICRO_BATCH_SIZES_MAX
from predictor_service.inference.records import DEFAULT_CONFIDENCE, JobQuestion, PairJob, PairsQuestion, RiskQuestion

SETTINGS_BYTES_MAX: Final = 64 << 10
"""Of one job, as sent: room for thousands of dimension bindings."""


def job_question(request: prediction_pb2.PredictJobRequest) -> JobQuestion:
    """Reads a PredictJob request.

    Raises:
        InvalidRequestError: A setting is outside its range.
    """
    _check_count("micro_batch_sizes", request.micro_batch_sizes, MICRO_BATCH_SIZES_MAX)
    return JobQuestion(
        settings=job_settings(request.settings),
        device=request.device,
        onnx_graph=request.onnx_graph,
        graph_sha256=request.graph_sha256,
        device_memory_bytes=request.device_memory_bytes,
        micro_batch_sizes=tuple(request.micro_batch_sizes),
        explain=request.explain,
        find_largest_batch=request.find_largest_batch_size,
        confidence=request.confidence or DEFAULT_CONFIDENCE,
        calibration=_calibration(request),
        find_memory_states=request.find_memory_states,
        device_facts=_facts(request),
    )


def pairs_question(request: prediction_pb2.PredictPairsRequest) -> PairsQuestion:
    """Reads a PredictPairs request.

    Raises:
        InvalidRequestError: A setting is outside its range.
    """
    _check_count("jobs", request.jobs, PAIR_JOBS_MAX)
    _check_count("observed", request.observed, PAIR_JOBS_MAX**2)
    return PairsQuestion(
        device=request.device,
        jobs=tuple(_pair_job(job) for job in request.jobs),
        observed={(pair.victim_job_id, pair.other_job_id): pair.slowdown_ratio for pair in request.observed},
        doubted=frozenset((pair.victim_job_id, pair.other_job_id) for pair in request.observed if pair.quality_flags),
        confidence=request.confidence or DEFAULT_CONFIDENCE,
        device_memory_bytes=request.device_memory_bytes,
        calibration=_calibration(request),
        sharing=DeviceSharing(request.sharing),
        device_facts=_facts(request),
    )


def risk_question(request: prediction_pb2.PredictMemoryRiskRequest) -> RiskQuestion:
    """Reads a PredictMemoryRisk request.

    Raises:
        InvalidRequestError: A setting is outside its range.
    """
    _check_count("jobs", request.jobs, RISK_JOBS_MAX)
    return RiskQuestion(
        device=request.device,
        jobs=tuple(_pair_job(job) for job in request.jobs),
        device_memory_bytes=request.device_memory_bytes,
        confidence=request.confidence or DEFAULT_CONFIDENCE,
        calibration=_calibration(request),
    )


def job_settings(message: resources_pb2.JobSettings) -> JobSettings:
    """Reads the settings of a job.

    Raises:
        InvalidRequestError: A setting is outside its range.
    """
    size_bytes = message.ByteSize()
    if size_bytes > SETTINGS_BYTES_MAX:
        raise invalid_field(
            "settings",
            f"those of a job have {size_bytes} bytes, at most {SETTINGS_BYTES_MAX} are read",
            "bind dimensions that the graph has, by their names",
        )
    try:
        return read_settings(message)
    except JobSettingsError as error:
        raise invalid_setting(error) from error


def _calibration(
    request: prediction_pb2.PredictJobRequest
    | prediction_pb2.PredictPairsRequest
    | prediction_pb2.PredictMemoryRiskRequest,
) -> DeviceCalibration | None:
    if not request.HasField("calibration"):
        return None
    try:
        return read_calibration_message(request.calibration, now_ms())
    except CalibrationError as error:
        raise invalid_field("calibration", error.message, error.remedy) from error


def _facts(request: prediction_pb2.PredictJobRequest | prediction_pb2.PredictPairsRequest) -> DeviceFacts | None:
    return read_facts_message(request.device_facts) if request.HasField("device_facts") else None


def _check_count(field: str, parts: Collection[object], parts_max: int) -> None:
    if len(parts) > parts_max:
        raise invalid_field(field, f"{len(parts)}, more than {parts_max}", "send fewer")


def _pair_job(job: prediction_pb2.JobRef) -> PairJob:
    has_settings = job.HasField("settings") or bool(job.graph_sha256)
    return PairJob(
        job_id=job.job_id,
        # A job without a graph is known by its figures; settings then have no meaning.
        settings=job_settings(job.settings) if has_settings else JobSettings(global_batch_size=1),
        graph_sha256=job.graph_sha256,
        known_step_ms=job.known_step_ms if job.HasField("known_step_ms") else None,
        known_utilization_ratio=job.known_utilization_ratio if job.HasField("known_utilization_ratio") else None,
        known_memory_bytes=job.known_memory_bytes if job.HasField("known_memory_bytes") else None,
    )
