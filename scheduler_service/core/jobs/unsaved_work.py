"""What a job has done that no checkpoint holds: it is lost with its attempt, and users are told before that."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase, Reason

_TRAINING = (Phase.RUNNING, Phase.PAUSED)


def unsaved_work(job: JobRecord, now_ms: int) -> Mapping[str, float]:
    """Return what a stop takes from a job that never wrote a checkpoint, if its script writes none when asked to.

    Returns:
        `unsaved_steps` and `unsaved_ms`, the time of its attempt without pauses. Empty where a checkpoint is there: the
        script that wrote it is taken to write one more. Empty too where no process runs yet.
    """
    if job.checkpoint_step >= 0 or job.phase not in _TRAINING:
        return {}
    trained_ms = now_ms - job.times.started_at_ms - job.measured.paused_ms
    return {"unsaved_steps": job.steps_done, "unsaved_ms": max(trained_ms, 0)}


def with_unsaved_work(reason: Reason, job: JobRecord, now_ms: int) -> Reason:
    """Return why a job is stopped, with what that takes from it."""
    unsaved = unsaved_work(job, now_ms)
    return _with_numbers(reason, unsaved) if unsaved else reason


def lost_steps(job: JobRecord) -> int:
    """Return the steps that a job lost with an attempt that has ended, because it never wrote a checkpoint."""
    return 0 if job.checkpoint_step >= 0 else job.steps_done


def with_lost_steps(reason: Reason, job: JobRecord) -> Reason:
    """Return why a job waits again, with the steps that it lost."""
    lost = lost_steps(job)
    return _with_numbers(reason, {"lost_steps": lost}) if lost else reason


def _with_numbers(reason: Reason, more: Mapping[str, float]) -> Reason:
    numbers = {**reason.numbers, **more}
    return Reason(code=reason.code, numbers=numbers, job_ids=reason.job_ids, gpu_ids=reason.gpu_ids)
