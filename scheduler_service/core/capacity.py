"""How much of a GPU a job needs, and whether jobs may share one. The same answers for policies and plan check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from scheduler_service.core.records import Gpu, JobPrediction, JobRequest, Level, MemoryPoint, Reason, Share
from scheduler_service.core.view import Predictions

_DOUBTS = frozenset({"PAIR_UNKNOWN", "OUT_OF_DOMAIN", "JOB_UNKNOWN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A job on a GPU, as far as its neighbours care."""

    request: JobRequest
    sub_batch: int
    memory_reserved_bytes: int


def samples_per_gpu(request: JobRequest, gpus: int) -> int:
    """Return the samples that each GPU gets per optimizer step, rounded up."""
    return -(-request.batch // gpus)


def is_reliable(prediction: JobPrediction | None) -> bool:
    """A prediction that may be trusted with somebody else's job: trained for this device and not extrapolated."""
    return prediction is not None and prediction.level is not Level.FALLBACK and prediction.in_domain


def memory_point(prediction: JobPrediction, sub_batch: int) -> MemoryPoint | None:
    """Return the prediction at this sub-batch or the next larger one, which bounds it; None when there is none."""
    exact = prediction.memory.get(sub_batch)
    if exact is not None:
        return exact
    larger = [known for known in prediction.memory if known > sub_batch]
    return prediction.memory[min(larger)] if larger else None


def reserved_bytes(request: JobRequest, prediction: JobPrediction | None, sub_batch: int, gpu: Gpu) -> int | None:
    """Return the memory to reserve on one GPU of this kind, or None when the job does not fit even alone.

    The 99 % bound is reserved. Where it passes the device but the expected value does not, the job gets the device for
    itself: alone it can hurt nobody. So does a job about which nothing reliable is known, and one that never shares.
    """
    point = _trusted_point(request, prediction, sub_batch)
    wanted = max(request.memory_request_bytes, request.memory_floor_bytes)
    expected = request.memory_request_bytes or (point.memory_bytes if point is not None else 0)
    if max(wanted, expected) > gpu.memory_bytes:
        return None
    if request.share is Share.NEVER or (point is None and not request.memory_request_bytes):
        return gpu.memory_bytes
    if point is not None and not request.memory_request_bytes:
        wanted = max(wanted, point.memory_bytes_upper_99)
    return min(wanted, gpu.memory_bytes)


def expected_bytes(request: JobRequest, prediction: JobPrediction | None, sub_batch: int) -> int:
    """Return what the job is known to need at least, for telling why it does not fit; 0 = nothing is known."""
    point = _trusted_point(request, prediction, sub_batch)
    predicted = point.memory_bytes if point is not None else 0
    return max(request.memory_request_bytes or predicted, request.memory_floor_bytes)


def _trusted_point(request: JobRequest, prediction: JobPrediction | None, sub_batch: int) -> MemoryPoint | None:
    if prediction is None or not (is_reliable(prediction) or request.share is Share.ANY):
        return None
    return memory_point(prediction, sub_batch)


def too_large_alone(request: JobRequest, sub_batch: int, gpu: Gpu, predictions: Predictions) -> Reason | None:
    """Return that a GPU is too small for what is predicted, however reliably: no consent to share helps there.

    Where the prediction is not reliable the job is tried alone all the same (`reserved_bytes`); it never shares.
    """
    prediction = predictions.job(request.key, gpu.device)
    point = memory_point(prediction, sub_batch) if prediction is not None else None
    if point is None or request.memory_request_bytes or point.memory_bytes <= gpu.memory_bytes:
        return None
    numbers = {"needed_bytes": point.memory_bytes, "gpu_memory_bytes": gpu.memory_bytes}
    code = "MEMORY_EXCEEDS_GPU" if _trusted_point(request, prediction, sub_batch) else "MEMORY_LIKELY_EXCEEDS_GPU"
    return Reason(code=code, numbers=numbers, gpu_ids=(gpu.gpu_id,))


def sharing_obstacle(
    newcomer: Resident, residents: Sequence[Resident], gpu: Gpu, predictions: Predictions
) -> Reason | None:
    """Return why these jobs must not share this GPU, or None when every one of them consents.

    Each job judges its own slowdown, the sum over the others and what a crowd costs beyond it: SAFE needs a reliable
    prediction for every pair, ANY also accepts the unknown; a known slowdown above its limit is refused by both.
    """
    everyone = (newcomer, *residents)
    refusing = tuple(resident.request.job_id for resident in everyone if resident.request.share is Share.NEVER)
    if refusing:
        return Reason(code="SHARE_NOT_ALLOWED", job_ids=refusing, gpu_ids=(gpu.gpu_id,))
    for victim in everyone:
        others = [other for other in everyone if other is not victim]
        obstacle = _victim_obstacle(victim, others, gpu, predictions)
        if obstacle is not None:
            is_doubt = obstacle.code in _DOUBTS
            too_large = too_large_alone(newcomer.request, newcomer.sub_batch, gpu, predictions) if is_doubt else None
            return too_large or obstacle
    return None


def expected_slowdown_ratio(
    victim: Resident, others: Sequence[Resident], gpu: Gpu, predictions: Predictions
) -> tuple[float, Reason | None]:
    """Return the summed pairwise slowdown of one job, and why that sum is not reliable (None = it is)."""
    doubt = _job_doubt(victim, gpu, predictions)
    total = 0.0
    for other in others:
        pair = predictions.pair(victim.request.key, other.request.key, gpu.device, victim.sub_batch)
        ids = (victim.request.job_id, other.request.job_id)
        if pair is None or pair.level is Level.FALLBACK:
            doubt = doubt or Reason(code="PAIR_UNKNOWN", job_ids=ids, gpu_ids=(gpu.gpu_id,))
        elif not pair.in_domain:
            doubt = doubt or Reason(code="OUT_OF_DOMAIN", job_ids=ids, gpu_ids=(gpu.gpu_id,))
        doubt = doubt or _job_doubt(other, gpu, predictions)
        total += max(pair.slowdown_ratio, 0.0) if pair is not None else 0.0
    return total, doubt


def crowd_slowdown_ratio(victim: Resident, others: Sequence[Resident], gpu: Gpu, predictions: Predictions) -> float:
    """Return what several jobs that take turns cost one of them beyond the sum of its pairs; 0 for pairs.

    Two neighbours wait for each other, want the GPU for longer and cost the victim more. Exact for fair turns of three
    jobs; of more, every two neighbours count by themselves. Jobs without a prediction are taken to want nothing.
    """
    if len(others) < 2:
        return 0.0
    wanted = [wanted_ratio(other, gpu, predictions) for other in others]
    waits = sum(mutual_wait_ratio(one, two) for one, two in combinations(wanted, 2))
    return wanted_ratio(victim, gpu, predictions) * waits


def mutual_wait_ratio(one_ratio: float, two_ratio: float) -> float:
    """Return for how much longer two jobs want a GPU beside each other, as a share of a third job's step.

    Source: mean value analysis of one shared queue, as in the predictor's composition of crowds: each wants the GPU for
    (u + s) / (1 + s) of its time, s = u1 * u2 being its slowdown.
    """
    product = one_ratio * two_ratio
    return product * (2.0 - one_ratio - two_ratio) / (1.0 + product)


def wanted_ratio(resident: Resident, gpu: Gpu, predictions: Predictions) -> float:
    """Return the share of its time alone in which a job wants the GPU; 0 = nobody knows."""
    prediction = predictions.job(resident.request.key, gpu.device)
    return min(max(prediction.utilization_ratio, 0.0), 1.0) if prediction is not None else 0.0


def _job_doubt(resident: Resident, gpu: Gpu, predictions: Predictions) -> Reason | None:
    prediction = predictions.job(resident.request.key, gpu.device)
    ids = (resident.request.job_id,)
    if prediction is None or prediction.level is Level.FALLBACK:
        return Reason(code="JOB_UNKNOWN", job_ids=ids, gpu_ids=(gpu.gpu_id,))
    return None if prediction.in_domain else Reason(code="OUT_OF_DOMAIN", job_ids=ids, gpu_ids=(gpu.gpu_id,))


def _victim_obstacle(victim: Resident, others: Sequence[Resident], gpu: Gpu, predictions: Predictions) -> Reason | None:
    slowdown_ratio, doubt = expected_slowdown_ratio(victim, others, gpu, predictions)
    if doubt is not None and victim.request.share is Share.SAFE:
        return doubt
    slowdown_ratio += crowd_slowdown_ratio(victim, others, gpu, predictions)
    if slowdown_ratio <= victim.request.max_slowdown_ratio:
        return None
    return Reason(
        code="SLOWDOWN_TOO_HIGH",
        numbers={"slowdown_ratio": slowdown_ratio, "max_slowdown_ratio": victim.request.max_slowdown_ratio},
        job_ids=(victim.request.job_id, *(other.request.job_id for other in others)),
        gpu_ids=(gpu.gpu_id,),
    )
