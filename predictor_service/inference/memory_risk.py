"""How likely jobs run out of one device's memory together: the estimate of each, handed to `oom_risk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from predictor_service.features.devices import DeviceType
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.observed_jobs import MEMORY_MARGIN, ObservedJob, weigh_observed_memory
from predictor_service.inference.records import Estimate, Level, Notice, PairJob, RiskAnswer
from predictor_service.inference.unusual_features import OF_OTHERS
from predictor_service.selection.conformal import ConformalBounds
from predictor_service.selection.oom_risk import JOBS_MAX, MemoryEstimate, estimate_oom_risk

RISK_JOBS_MAX: Final = JOBS_MAX
_CERTAIN: Final = ConformalBounds(residuals=(0.0,), rows=1, groups=1)

EstimatorOf = Callable[[PairJob], JobEstimator]
SeenOf = Callable[[PairJob], ObservedJob | None]


def estimate_memory_risk(
    jobs: Sequence[PairJob], device: DeviceType, estimator_of: EstimatorOf, seen_of: SeenOf, model_version: str
) -> RiskAnswer:
    """Estimates the risk of a set of jobs.

    Args:
        jobs: At least one; a job that is named twice under two ids counts twice.
        device: What they share, with the memory asked for.
        estimator_of: Predicts a job whose memory is not known.
        seen_of: What was measured of a job here; None = nothing.
        model_version: Name of what answers.

    Returns:
        The answer; without a risk where the memory of a job is only counted, because the error of that is unknown.
    """
    known = [_know(job, estimator_of, seen_of) for job in jobs]
    estimates = [estimate for estimate, _ in known]
    memory_estimates = [memory_estimate for _, memory_estimate in known if memory_estimate is not None]
    risk = estimate_oom_risk(memory_estimates, device.memory_bytes) if len(memory_estimates) == len(jobs) else None
    together_bytes = sum(estimate.upper_99 or estimate.upper for estimate in estimates)
    return RiskAnswer(
        model_version=model_version,
        independent_ratio=risk.independent if risk else None,
        union_bound_ratio=risk.union_bound if risk else None,
        bounds_fit=together_bytes <= device.memory_bytes,
        device_memory_bytes=device.memory_bytes,
        memory_bytes=estimates,
        warnings=tuple(_notices(jobs, estimates)),
    )


def _know(job: PairJob, estimator_of: EstimatorOf, seen_of: SeenOf) -> tuple[Estimate, MemoryEstimate | None]:
    """What is known of one job's memory, and its distribution where a model predicts it."""
    if job.known_memory_bytes is not None:
        upper_bytes = job.known_memory_bytes * MEMORY_MARGIN
        return _stated(job.known_memory_bytes, upper_bytes), MemoryEstimate(value_bytes=upper_bytes, bounds=_CERTAIN)
    estimator, batch = estimator_of(job), job.settings.global_batch_size
    estimate, memory_estimate = estimator.memory(batch), estimator.estimate_memory(batch)
    seen = seen_of(job)
    if seen is None:
        return estimate, memory_estimate
    if memory_estimate is not None:  # a peak that was seen is certain, one that was not yet reached may still come
        memory_estimate = memory_estimate.at_least(
            max(seen.memory_peak_bytes or 0, seen.memory_least_bytes or 0) * MEMORY_MARGIN
        )
    return weigh_observed_memory(estimate, seen), memory_estimate


def _stated(memory_bytes: float, upper_bytes: float) -> Estimate:
    """What the caller measured of the job alone."""
    return Estimate(
        value=memory_bytes,
        lower=memory_bytes,
        upper=upper_bytes,
        confidence=0.99,
        upper_99=upper_bytes,
        level=Level.SOLO_KNOWN,
        in_domain=True,
    )


def _notices(jobs: Sequence[PairJob], estimates: Sequence[Estimate]) -> Iterator[Notice]:
    counted = [job.job_id for job, estimate in zip(jobs, estimates, strict=True) if estimate.level is Level.FALLBACK]
    if counted:
        yield Notice(
            code="NO_TRAINED_MODEL",
            message=f"risk not known: the memory of {', '.join(counted)} is counted, not learned from measurements",
        )
    public = [job.job_id for job, each in zip(jobs, estimates, strict=True) if OF_OTHERS in each.unusual_features]
    if public:
        yield Notice(
            code="PUBLIC_MODEL",
            message=f"risk not known: the memory of {', '.join(public)} was learned from what others measured",
        )
    strange = [
        job.job_id
        for job, estimate in zip(jobs, estimates, strict=True)
        if not estimate.in_domain and estimate.level is not Level.FALLBACK and job.job_id not in public
    ]
    if strange:
        yield Notice(code="OUT_OF_DOMAIN", message=f"unlike every job that was measured: {', '.join(strange)}")
