"""How long the one job on each GPU still runs alone, as an array that is kept up to date from event to event."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.step_times import ELAPSED_LEAST_MS, ELAPSED_MOST_MS, step_ms_of
from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.jobs.job_records import JobRecord


class RemainingTimes(NamedTuple):
    """What is known of the one job on each GPU, by position; of no meaning on GPUs with two jobs or none.

    Attributes:
        remaining_ms: How long it still runs alone; where nothing tells, as long as it has run. The reader's own.
        job_of: Equal on GPUs of one job: the position of one that the job had for itself. Read, never changed.
    """

    remaining_ms: NDArray[np.float64]
    job_of: NDArray[np.intp]


class ServiceTimes(NamedTuple):
    """What is known of the service of the one job on each GPU, by position; of no meaning on GPUs with two or none.

    Attributes:
        attained_gpu_ms: GPU time that it has had.
        submitted_at_ms: When it was submitted.
        started_at_ms: When its present attempt began.
        migration_cost_ms: What it says that a move costs it.
        gpus: How much GPU time comes with time; 0 = none while it is paused.
        job_of: Equal on GPUs of one job: the position of one that the job had for itself.
    """

    attained_gpu_ms: NDArray[np.float64]
    submitted_at_ms: NDArray[np.float64]
    started_at_ms: NDArray[np.float64]
    migration_cost_ms: NDArray[np.float64]
    gpus: NDArray[np.float64]
    job_of: NDArray[np.intp]


ServiceLine = tuple[int, int, int, int, int]
"""What the service of a running job follows from at any instant: how much GPU time it would have had at instant 0, how
much of it comes in each ms, submission, start, and the cost of a move. Equal lines say the same at every instant."""


def service_line(job: JobRecord) -> ServiceLine:
    """Return what was last noted of a job's service, whenever that was."""
    earning = _earning(job)
    had_at_0 = job.attained_gpu_ms - job.accrued_at_ms * earning
    return had_at_0, earning, job.times.submitted_at_ms, job.times.started_at_ms, job.request.migration_cost_ms


def _earning(job: RunningJob | JobRecord) -> int:
    """Return how much GPU time a job has in each ms: none while it is paused."""
    return 0 if job.pause is not None and job.pause.paused_at_ms > 0 else len(job.assignments)


class KeptRemainingTimes:
    """What remaining time and service of the job on each GPU follow from at any instant.

    Args:
        position_of: The position of every GPU.

    Attributes:
        job_of: As in `ServiceTimes`.
    """

    def __init__(self, position_of: Mapping[str, int]) -> None:
        self._position_of = position_of
        size = len(position_of)
        self._known = np.zeros((11, size))
        # Steps left then and until when that is counted, how many are left at least, and at what pace they go on; how
        # long one takes alone, and since when the job runs where that is unknown.
        self._values = tuple(self._known[:6])
        self._known[3] = self._known[5] = inf
        # GPU time until then and how much of it comes in each ms, submission, start, and the cost of a move.
        self._services = tuple(self._known[6:])
        self.job_of = np.zeros(size, dtype=np.intp)
        self._has_unknown = False

    def put(
        self,
        view: SchedulingView,
        job: RunningJob | JobRecord,
        *,
        micro_batch_size: int,
        submitted_at_ms: int,
        started_at_ms: int,
        pace_ms: float,
        is_now: bool = False,
    ) -> None:
        """Note a job on the GPUs that it has for itself.

        Args:
            view: Tells which jobs are where, and what is predicted.
            job: As it was last reported.
            micro_batch_size: In which it runs.
            submitted_at_ms: When it was submitted.
            started_at_ms: When its present attempt began.
            pace_ms: What a step takes from then on until the instant that the array is read for; infinite = none is
                made.
            is_now: Its GPU time is that of the instant that the array is read for.
        """
        job_ids, gpus, alone = (job.request.job_id,), view.gpus, list[str]()
        for part in job.assignments:
            entry = gpus.get(part.gpu_id)
            if entry is not None and entry.job_ids == job_ids:
                alone.append(part.gpu_id)
        if not alone:
            return
        prediction = view.predictions.job(job.request.key, gpus[alone[0]].gpu.device)
        step_ms = step_ms_of(job.request, prediction, gpus=len(job.assignments), micro_batch_size=micro_batch_size)
        total, done = job.request.steps_total, job.steps_done
        known_ms = (0.0, started_at_ms) if step_ms is None or total <= 0 else (step_ms, inf)
        self._has_unknown |= known_ms[1] < inf
        values = (total - done, job.accrued_at_ms, min(max(total - done, 0), 1), pace_ms, *known_ms)
        earning = 0 if is_now else _earning(job)
        service = job.attained_gpu_ms, earning, submitted_at_ms, started_at_ms, job.request.migration_cost_ms
        positions = [self._position_of[gpu_id] for gpu_id in alone]
        if len(positions) == 1:  # most jobs, in half the time
            self._known[:, positions[0]] = (*values, *service)
        else:
            self._known[:, positions] = np.array([*values, *service], dtype=np.float64)[:, np.newaxis]
        self.job_of[positions] = positions[0]

    def at(self, now_ms: int) -> RemainingTimes:
        """Return the remaining times at an instant: `progress_extrapolation.extrapolated` over all GPUs."""
        steps_left, accrued_at_ms, least, pace_ms, step_ms, since_ms = self._values
        # In one array: it is made in every round.
        left: NDArray[np.float64] = now_ms - accrued_at_ms
        np.maximum(left, 0.0, out=left)
        left /= pace_ms
        np.floor(left, out=left)
        np.subtract(steps_left, left, out=left)
        np.maximum(left, least, out=left)
        left *= step_ms
        if self._has_unknown:
            as_long_again = np.clip(now_ms - since_ms, ELAPSED_LEAST_MS, ELAPSED_MOST_MS)
            left = np.where(since_ms < inf, as_long_again, left)
        return RemainingTimes(left, self.job_of)

    def services_at(self, now_ms: int) -> ServiceTimes:
        """Return what jobs have had at an instant: `progress_extrapolation.extrapolated` over all GPUs."""
        attained_gpu_ms, gpus, submitted_at_ms, started_at_ms, cost_ms = self._services
        attained_gpu_ms = attained_gpu_ms + (now_ms - self._values[1]) * gpus
        return ServiceTimes(attained_gpu_ms, submitted_at_ms, started_at_ms, cost_ms, gpus, self.job_of)


def build_remaining_times(view: SchedulingView, position_of: Mapping[str, int]) -> KeptRemainingTimes:
    """Return what the remaining times of a view follow from, by its records; GPUs at these positions."""
    kept = KeptRemainingTimes(position_of)
    for job in view.running.values():
        kept.put(
            view,
            job,
            micro_batch_size=job.micro_batch_size,
            submitted_at_ms=job.submitted_at_ms,
            started_at_ms=job.started_at_ms,
            pace_ms=inf,
            is_now=True,
        )
    return kept
