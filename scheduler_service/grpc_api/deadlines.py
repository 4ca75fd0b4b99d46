"""Whether a job will have ended when its owner wants that."""

from __future__ import annotations

from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.core.step_times import step_ms_of


def deadline_missed_by_ms(state: ClusterState, job: JobRecord) -> int | None:
    """Return by how much a living job misses its deadline even if nothing keeps it from running from now on.

    Args:
        state: Knows the predictions.
        job: Its steps left take what they take now, or else what is predicted alone on the fastest type of device.

    Returns:
        Milliseconds; None = it has no deadline, has ended, or may still keep it.
    """
    deadline_at_ms = job.request.terms.deadline_at_ms
    if not deadline_at_ms or job.has_ended:
        return None
    missed_by_ms = state.now_ms + (_remaining_ms(state, job) or 0) - deadline_at_ms
    return round(missed_by_ms) if missed_by_ms > 0 else None


def _remaining_ms(state: ClusterState, job: JobRecord) -> float | None:
    steps = max(job.request.steps_total - job.steps_done, 0)
    if job.phase is Phase.RUNNING and job.pace_ms:
        return steps * job.pace_ms
    predictions = (state.predictions.job(job.request.key, device) for device in state.devices)
    found = [step_ms_of(job.request, prediction, gpus=job.request.gpus) for prediction in predictions]
    return min((steps * step_ms for step_ms in found if step_ms is not None), default=None)
