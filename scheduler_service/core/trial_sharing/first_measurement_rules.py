"""Next to which running job one that was never measured may be measured, and for how long that one may be paused.

The host of a measurement was measured alone, can be paused where it is, and keeps all of its reservation; what it
leaves of the GPU's memory must hold what is stated or predicted of the incoming job, however unsure. A host lends
little of its life, a few times: `lent_ratio_max` of what it has run and is foreseen to run.
"""

from __future__ import annotations

from scheduler_service.core.cluster_view.capacity import Resident, memory_point
from scheduler_service.core.cluster_view.shared_ways import place_of
from scheduler_service.core.cluster_view.view import GpuView, Predictions, RunningJob, SchedulingView
from scheduler_service.core.records import (
    PAUSED_MS_MAX,
    Gpu,
    JobPrediction,
    JobRequest,
    Level,
    Reason,
    Share,
)
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.core.sharing.sharing_consent import DOUBTS, sharing_obstacle

PAUSE_REPORTS_LEAST = 7.5
"""Agents confirm a pause and report a window after it within so many reports."""
LENT_RATIO_LEAST = 0.05
"""Of the host's life, all its pauses for others together; more where it accepts more."""
LENT_OF_ACCEPTED_RATIO = 0.25
"""Of the slowdown that a host accepts, so much may come from pauses."""
LENT_RATIO_MAX = 0.25
"""No host lends more, whatever it accepts."""
LENT_PAUSES_MAX = 8
HOST_REMAINING_PAUSES_MIN = 4.0
"""A host that ends within so many of the shortest pauses is waited for."""
HOST_SLACK_PAUSES_MIN = 3.0
"""The start of an incoming job and its measurement cost a host about so many of the shortest pauses."""
INCOMING_RATIO_LEAST = 0.5
"""Where nothing is known of a job so much of the device must be free: with less, some run out of memory."""
INCOMING_UTILIZATION_LEAST = 0.25
"""A job that uses less of a device is rare: a host that could not bear this much is not paused for nothing."""


def may_share_on_trial(request: JobRequest) -> bool:
    """A job on one GPU that may share on trial, once it was measured alone."""
    return bool(request.key) and not request.no_trial and request.gpus == 1 and request.share is not Share.NEVER


def pause_ms_least(report_interval_ms: int) -> int:
    """Return the shortest pause in which another job can be measured: agents tell of both with their reports."""
    return int(PAUSE_REPORTS_LEAST * report_interval_ms)


def lent_ratio_max(request: JobRequest) -> float:
    """Return how much of its life a job lends at most: a part of the slowdown that it accepts, or a little."""
    accepted_ratio = request.max_slowdown_ratio
    return min(max(LENT_RATIO_LEAST, LENT_OF_ACCEPTED_RATIO * accepted_ratio), accepted_ratio, LENT_RATIO_MAX)


def lendable_ms(request: JobRequest, *, ran_ms: float, remaining_ms: float | None, lent_ms: int, least_ms: int) -> int:
    """Return how long a job may be paused now so that another one is measured; 0 = too short for a measurement.

    Args:
        request: The job.
        ran_ms: How long it has held its GPU, pauses left out.
        remaining_ms: How long it still runs alone; None = not known, and it is taken to run as long again.
        lent_ms: What it has lent before.
        least_ms: The shortest pause that is of any use.
    """
    life_ms = ran_ms + (ran_ms if remaining_ms is None else remaining_ms)
    left_ms = int(lent_ratio_max(request) * life_ms) - lent_ms
    return min(left_ms, PAUSED_MS_MAX) if left_ms >= least_ms else 0


def lendable_after_ms(request: JobRequest, lent_ms: int, least_ms: int) -> float:
    """Return after how long a run a job of unknown length may be paused so; infinite = never."""
    ratio = lent_ratio_max(request)
    return (least_ms + lent_ms) / (2 * ratio) if ratio > 0 else float("inf")


def has_slack(job: RunningJob, remaining_ms: float | None, least_ms: int) -> bool:
    """Say whether what a job accepts to lose over its life, less what it has lost, covers one more measurement.

    Args:
        job: A host.
        remaining_ms: How long it still runs alone; None = not known, and it has slack.
        least_ms: The shortest pause that is of any use.
    """
    done_ms = job.steps_done * job.solo_step_ms
    if remaining_ms is None or not done_ms:
        return True
    lost_ms = job.attained_gpu_ms + job.lent_ms - done_ms
    return job.request.max_slowdown_ratio * (done_ms + remaining_ms) - lost_ms >= HOST_SLACK_PAUSES_MIN * least_ms


def host_obstacle(view: SchedulingView, job: RunningJob, entry: GpuView) -> Reason | None:
    """Return why no job may be measured next to this one, which is alone on a GPU; None = one may.

    How much of its life it may lend is not asked here.
    """
    job_id, gpu = job.request.job_id, entry.gpu
    has_lent_enough = job.lent_pauses >= LENT_PAUSES_MAX or job_id in view.protected_job_ids
    if has_lent_enough or not may_share_on_trial(job.request) or len(job.assignments) != 1:
        return Reason(code="SHARE_NOT_ALLOWED", job_ids=(job_id,), gpu_ids=(gpu.gpu_id,))
    if entry.is_releasing or job.is_stopping or job.moving_to or job.pause is not None or job.memory_surge is not None:
        return Reason(code="GPU_RELEASING", gpu_ids=(gpu.gpu_id,))
    if job.is_on_trial:
        return Reason(code="TRIAL_GOES_ON", job_ids=(job_id,), gpu_ids=(gpu.gpu_id,))
    prediction = view.predictions.job(job.request.key, gpu.device)
    if prediction is None or job.micro_batch_size not in prediction.measured_micro_batch_sizes:
        return Reason(code="JOB_UNKNOWN", job_ids=(job_id,), gpu_ids=(gpu.gpu_id,))
    return pause_obstacle(view, job)


def incoming_obstacle(view: SchedulingView, incoming: Resident, host: RunningJob, entry: GpuView) -> Reason | None:
    """Return why a job must not be measured next to this host; None = it may.

    Args:
        view: Predictions.
        incoming: The job, with what the host leaves as its reservation.
        host: Passes `host_obstacle`.
        entry: Its GPU.
    """
    gpu, request, predictions = entry.gpu, incoming.request, view.predictions
    if not may_share_on_trial(request):
        return Reason(code="SHARE_NOT_ALLOWED", job_ids=(request.job_id,), gpu_ids=(gpu.gpu_id,))
    prediction = predictions.job(request.key, gpu.device)
    needed_bytes = needed_to_measure_bytes(request, prediction, incoming.micro_batch_size, gpu)
    free_bytes = incoming.memory_reserved_bytes
    if needed_bytes > free_bytes or free_bytes <= 0:
        numbers = {"needed_bytes": needed_bytes, "free_bytes": free_bytes, "gpu_memory_bytes": gpu.memory_bytes}
        return Reason(code="MEMORY_DOES_NOT_FIT", numbers=numbers, gpu_ids=(gpu.gpu_id,))
    there = Resident(request=host.request, micro_batch_size=host.micro_batch_size, memory_reserved_bytes=0)
    return (
        _certainty(incoming, there, gpu, predictions)
        or _known_break(incoming, there, gpu, predictions)
        or _utilization_obstacle(incoming, there, gpu, predictions)
    )


def needed_to_measure_bytes(
    request: JobRequest, prediction: JobPrediction | None, micro_batch_size: int, gpu: Gpu
) -> int:
    """Return the memory that must be free on a GPU for a job that was never measured, by the little that is known."""
    point = memory_point(prediction, micro_batch_size) if prediction is not None else None
    foreseen_bytes = request.memory_request_bytes or (point.memory_bytes_upper_99 if point is not None else 0)
    known_bytes = max(foreseen_bytes, request.memory_floor_bytes)
    return known_bytes or int(INCOMING_RATIO_LEAST * gpu.memory_bytes)


def _certainty(incoming: Resident, host: Resident, gpu: Gpu, predictions: Predictions) -> Reason | None:
    """Return that a measurement would tell nothing new: it is known already whether the two may share."""
    found = sharing_obstacle(incoming, [host], gpu, predictions)
    if found is None:
        return Reason(code="KNOWN_TOGETHER", job_ids=(host.request.job_id,), gpu_ids=(gpu.gpu_id,))
    return None if found.code in DOUBTS else found


def _known_break(one: Resident, other: Resident, gpu: Gpu, predictions: Predictions) -> Reason | None:
    """Return that one of two jobs was measured to lose more to the other than it accepts."""
    for victim, other_job in ((one, other), (other, one)):
        keys, sizes = (victim.request.key, other_job.request.key), (victim.micro_batch_size, other_job.micro_batch_size)
        pair = predictions.pair(*keys, place_of(gpu), *sizes)
        if pair is None or pair.level is not Level.OBSERVED:
            continue
        if pair.slowdown_ratio > victim.request.max_slowdown_ratio:
            return _too_slow(victim, other_job, pair.slowdown_ratio, gpu)
    return None


def _utilization_obstacle(incoming: Resident, host: Resident, gpu: Gpu, predictions: Predictions) -> Reason | None:
    """Return that next to this host hardly any job keeps both consents in fair turns."""
    prediction = predictions.job(host.request.key, gpu.device)
    slowdown_ratio = INCOMING_UTILIZATION_LEAST * (prediction.utilization_ratio if prediction is not None else 1.0)
    for victim, other_job in ((incoming, host), (host, incoming)):
        if slowdown_ratio > victim.request.max_slowdown_ratio:
            return _too_slow(victim, other_job, slowdown_ratio, gpu)
    return None


def _too_slow(victim: Resident, other_job: Resident, slowdown_ratio: float, gpu: Gpu) -> Reason:
    numbers = {"slowdown_ratio": slowdown_ratio, "max_slowdown_ratio": victim.request.max_slowdown_ratio}
    job_ids = (victim.request.job_id, other_job.request.job_id)
    return Reason(code="SLOWDOWN_TOO_HIGH", numbers=numbers, job_ids=job_ids, gpu_ids=(gpu.gpu_id,))
