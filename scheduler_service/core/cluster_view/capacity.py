"""How much of a GPU a job needs. The same answers for policies and plan check."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.copied_record import quick_record
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge, surge_of
from scheduler_service.core.records import Gpu, JobPrediction, JobRequest, Level, MemoryPoint, Reason, Share

# A name of the module is found four times as fast as a member of its enum, on every fact.
_FALLBACK: Final = Level.FALLBACK
_NEVER: Final = Share.NEVER


@quick_record
class Resident:
    """A job on a GPU, as far as co-located jobs are concerned.

    Attributes:
        is_gang: It holds other GPUs as well.
        is_on_trial: It shares this GPU on trial, with one other job and no third one.
        memory_surge: What of its reservation it needs now and then; None = it holds all of it.
    """

    request: JobRequest
    micro_batch_size: int
    memory_reserved_bytes: int
    is_gang: bool = False
    is_on_trial: bool = False
    memory_surge: MemorySurge | None = None

    @property
    def is_open_to_trial(self) -> bool:
        """It may share its one GPU on trial, as far as it is asked itself."""
        request = self.request
        return not (request.no_trial or self.is_on_trial or self.is_gang or request.gpus != 1)


def samples_per_gpu(request: JobRequest, gpus: int) -> int:
    """Return the samples that each GPU gets per optimizer step, rounded up."""
    return -(-request.global_batch_size // gpus)


def is_reliable(prediction: JobPrediction | None) -> bool:
    """A prediction that is reliable enough to share a GPU on: calibrated for this device and not extrapolated."""
    return (
        prediction is not None
        and prediction.level is not _FALLBACK
        and prediction.in_domain
        and not prediction.range_not_calibrated
    )


def doubt_code(prediction: JobPrediction | None) -> str | None:
    """Return why a prediction is not reliable, or None."""
    if is_reliable(prediction):
        return None
    if prediction is None or prediction.level is _FALLBACK:
        return "JOB_UNKNOWN"
    return "RANGE_NOT_CALIBRATED" if prediction.in_domain else "OUT_OF_DOMAIN"


def memory_point(prediction: JobPrediction, micro_batch_size: int) -> MemoryPoint | None:
    """Return the prediction at this micro-batch or the next larger one, which bounds it; None when there is none."""
    exact = prediction.memory.get(micro_batch_size)
    if exact is not None:
        return exact
    larger = [known for known in prediction.memory if known > micro_batch_size]
    return prediction.memory[min(larger)] if larger else None


def reserved_bytes(
    request: JobRequest, prediction: JobPrediction | None, micro_batch_size: int, gpu: Gpu
) -> int | None:
    """Return the memory to reserve on one GPU of this kind, or None when the job does not fit even alone.

    The 99 % bound is reserved. Where it passes the device but the expected value does not, the job gets the device for
    itself: alone it slows no other job down. So does a job about which nothing reliable is known, and one that never
    shares.
    """
    point = _trusted_point(request, prediction, micro_batch_size)
    wanted = max(request.memory_request_bytes, request.memory_floor_bytes)
    expected = request.memory_request_bytes or (point.memory_bytes if point is not None else 0)
    if max(wanted, expected) > gpu.memory_bytes:
        return None
    if request.share is _NEVER or (point is None and not request.memory_request_bytes):
        return gpu.memory_bytes
    if point is not None and not request.memory_request_bytes:
        wanted = max(wanted, point.memory_bytes_upper_99)
    return min(wanted, gpu.memory_bytes)


def micro_batch_size_alone(request: JobRequest, prediction: JobPrediction | None, gpus: int, gpu: Gpu) -> int | None:
    """Return the samples per pass with which a job fits on a GPU of this kind that is empty, or None.

    All samples of the GPU at once; where these need more memory than it has, half of them, a quarter ... in as many
    passes of one optimizer step, unless the job refuses that (share: never) or its program cuts no batch.

    Source: SJF-BSBF, Algorithm 2, which looks for such a size on shared GPUs only.
    """
    samples = samples_per_gpu(request, gpus)
    if reserved_bytes(request, prediction, samples, gpu) is not None:
        return samples
    # What is stated or was raised does not shrink with the passes.
    is_whole = request.takes_whole_batch or request.share is _NEVER
    if is_whole or max(request.memory_request_bytes, request.memory_floor_bytes) > gpu.memory_bytes:
        return None
    passes = 2
    while passes < 2 * samples:
        micro_batch_size = -(-samples // passes)
        if reserved_bytes(request, prediction, micro_batch_size, gpu) is not None:
            return micro_batch_size
        passes *= 2
    return None


def resident_on(
    request: JobRequest, prediction: JobPrediction | None, micro_batch_size: int, gpu: Gpu
) -> Resident | None:
    """Return a job as it would be on one GPU of this kind, or None when it does not fit even alone."""
    reserved = reserved_bytes(request, prediction, micro_batch_size, gpu)
    return (
        None
        if reserved is None
        else Resident(request=request, micro_batch_size=micro_batch_size, memory_reserved_bytes=reserved)
    )


def opportunistic(resident: Resident, prediction: JobPrediction | None, gpu: Gpu, tau_ratio: float) -> Resident:
    """Return a job as it is where peaks of memory may coincide with this probability; 0 = as it was.

    Args:
        resident: As `resident_on` returns it.
        prediction: What is known of it there; only what is reliable counts, unless it accepts anything (share: any).
        gpu: The GPU.
        tau_ratio: The limit of the cluster.
    """
    if tau_ratio <= 0.0 or not (is_reliable(prediction) or resident.request.share is Share.ANY):
        return resident
    surge = surge_of(resident.request, prediction, resident.memory_reserved_bytes, gpu)
    return resident if surge is None else replace(resident, memory_surge=surge)


def expected_bytes(request: JobRequest, prediction: JobPrediction | None, micro_batch_size: int) -> int:
    """Return what the job is known to need at least, for telling why it does not fit; 0 = nothing is known."""
    point = _trusted_point(request, prediction, micro_batch_size)
    predicted = point.memory_bytes if point is not None else 0
    return max(request.memory_request_bytes or predicted, request.memory_floor_bytes)


def _trusted_point(request: JobRequest, prediction: JobPrediction | None, micro_batch_size: int) -> MemoryPoint | None:
    if prediction is None or not (is_reliable(prediction) or request.share is Share.ANY):
        return None
    return memory_point(prediction, micro_batch_size)


def too_large_alone(request: JobRequest, micro_batch_size: int, gpu: Gpu, predictions: Predictions) -> Reason | None:
    """Return that a GPU is too small for what is predicted, however reliably: no consent to share helps there.

    Where the prediction is not reliable the job is tried alone all the same (`reserved_bytes`); it never shares.
    """
    prediction = predictions.job(request.key, gpu.device)
    point = memory_point(prediction, micro_batch_size) if prediction is not None else None
    if point is None or request.memory_request_bytes or point.memory_bytes <= gpu.memory_bytes:
        return None
    numbers = {"needed_bytes": point.memory_bytes, "gpu_memory_bytes": gpu.memory_bytes}
    code = (
        "MEMORY_EXCEEDS_GPU" if _trusted_point(request, prediction, micro_batch_size) else "MEMORY_LIKELY_EXCEEDS_GPU"
    )
    return Reason(code=code, numbers=numbers, gpu_ids=(gpu.gpu_id,))
