"""What is reported of an attempt to the predictor: its steps alone, once, and its peak of memory.

A peak is what the job needs only where it has run to its end, whole on one GPU. While it runs, and where it is
cancelled, fails, is taken off its GPU or has only a part of its batch there, the peak is the least that it needs, and
is reported with that doubt. Steps whose windows scatter are reported with doubt too, and not before the end: until
then the windows may still settle.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from scheduler_service.core.commands import RecordOutcome
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_parts import AttemptMeasurements
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import INCOMPLETE_RUN, UNSTEADY
from scheduler_service.core.state import ClusterState

WINDOW_MS_MIN = 10_000
"""Time measured alone that is worth telling while a job still runs."""
WINDOW_AT_END_MS_MIN = 1_000
WINDOWS_LOOKED_AT = 8
"""Newest windows alone that tell whether steps scatter."""
UNSTEADY_RATIO = 0.1
"""Median deviation of the windows' step times, as a share of their median; agents judge windows by the same."""


def tell_progress(state: ClusterState, job: JobRecord, step: EventEffects) -> JobRecord:
    """Report a running job once it has stepped alone for long enough; return it as reported."""
    measured = job.measured
    if measured.is_outcome_recorded or measured.solo_window_ms < WINDOW_MS_MIN or _is_unsteady(measured):
        return job
    _tell(state, job, step, **_steps(job))
    return job.measuring(is_outcome_recorded=True, told_peak_bytes=_tell_least(state, job, step))


def tell_end(state: ClusterState, job: JobRecord, step: EventEffects, *, is_complete: bool) -> None:
    """Report what is not yet reported of an attempt that has ended.

    Args:
        state: As it was while the attempt held its GPUs.
        job: With what is known of the end.
        step: Takes the commands.
        is_complete: The job has run to its end.
    """
    steps: dict[str, Any] = {}
    measured = job.measured
    if measured.solo_window_ms >= WINDOW_AT_END_MS_MIN and not measured.is_outcome_recorded:
        steps = _steps(job)
        if _is_unsteady(measured):
            _tell(state, job, step, **steps, quality_flags=(UNSTEADY,))
            steps = {}
    is_known = is_complete and _is_whole(job) and measured.attempt_peak_bytes > 0
    if is_known:
        window_ms = steps.pop("window_ms", state.now_ms - job.times.started_at_ms)
        _tell(state, job, step, **steps, window_ms=window_ms, memory_peak_bytes=measured.attempt_peak_bytes)
    elif steps:
        _tell(state, job, step, **steps)
    if not is_known:
        _tell_least(state, job, step)


def _tell_least(state: ClusterState, job: JobRecord, step: EventEffects) -> int:
    """Report a peak that may not be the last one, where it is larger than what was reported; return the largest."""
    peak_bytes = job.measured.attempt_peak_bytes
    if peak_bytes <= job.measured.told_peak_bytes:
        return job.measured.told_peak_bytes
    window_ms = state.now_ms - job.times.started_at_ms
    _tell(state, job, step, window_ms=window_ms, memory_peak_bytes=peak_bytes, quality_flags=(INCOMPLETE_RUN,))
    return peak_bytes


def _tell(state: ClusterState, job: JobRecord, step: EventEffects, **measured: Any) -> None:  # noqa: ANN401 - of the command
    """Nothing is reported of a job that was never predicted."""
    gpu = state.gpus.get(job.assignments[0].gpu_id) if job.assignments else None
    prediction = state.predictions.job(job.request.key, gpu.gpu.device) if gpu is not None else None
    if prediction is not None and prediction.prediction_id:
        step.commands.append(
            RecordOutcome(prediction_id=prediction.prediction_id, job_id=job.job_id, node_ids=job.node_ids, **measured)
        )


def _steps(job: JobRecord) -> dict[str, Any]:
    return {
        "utilization_ratio": job.measured.solo_utilization_ratio,
        "step_ms_mean": job.solo_step_ms or None,
        "window_ms": job.measured.solo_window_ms,
    }


def _is_unsteady(measured: AttemptMeasurements) -> bool:
    if len(measured.solo_windows_step_ms) < 2:
        return False
    typical_ms = median(measured.solo_windows_step_ms)
    spread_ms = median(abs(value - typical_ms) for value in measured.solo_windows_step_ms)
    return spread_ms > UNSTEADY_RATIO * typical_ms


def _is_whole(job: JobRecord) -> bool:
    """Say whether its GPU had the whole batch in one pass, which is what was predicted."""
    return len(job.assignments) == 1 and job.shape.accumulation_steps <= 1
