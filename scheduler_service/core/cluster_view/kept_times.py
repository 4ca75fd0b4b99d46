"""How long running jobs still run and what they have had, brought up to date by what events have touched."""

from __future__ import annotations

from math import inf
from typing import Final

from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays
from scheduler_service.core.cluster_view.remaining_times import KeptRemainingTimes, ServiceLine, service_line
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase
from scheduler_service.core.state import ClusterState

IDS_PER_JOB_MAX: Final = 2
UNUSED_LINES_MAX: Final = 1_000
"""With that many for every running job, and these besides, what is kept of jobs that have left is forgotten."""


class KeptTimes:
    """The remaining times of one state, built when they are first read.

    Args:
        state: Notes the running jobs that events touch, and every change of nodes.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._layout = -1
        self._times: KeptRemainingTimes | None = None
        self._lines: dict[str, ServiceLine] = {}
        self._unnoted: set[str] = set()

    def read(self, view: SchedulingView, arrays: GpuArrays) -> KeptRemainingTimes:
        """Return what the times at a view's instant follow from; GPUs at their positions in the arrays."""
        times = self._of_layout(arrays)
        if self._unnoted:
            self._state.occupancy.touched_job_ids.update(self._unnoted & self._state.running.keys())
            self._unnoted.clear()
        self._note(times, view)
        return times

    def read_services(self, view: SchedulingView, arrays: GpuArrays) -> KeptRemainingTimes:
        """Return the same to who reads what jobs have had, of which most reports say nothing new."""
        times, touched = self._of_layout(arrays), self._state.occupancy.touched_job_ids
        unnoted = [job_id for job_id in touched if self._is_noted(self._state.jobs[job_id], arrays)]
        touched.difference_update(unnoted)
        self._unnoted.update(unnoted)
        if len(self._unnoted) > IDS_PER_JOB_MAX * len(self._state.running):
            self._unnoted &= self._state.running.keys()
        self._note(times, view)
        return times

    def _of_layout(self, arrays: GpuArrays) -> KeptRemainingTimes:
        layout = self._state.occupancy.layout
        if self._times is None or self._layout != layout:
            self._layout, self._times = layout, KeptRemainingTimes(arrays.position_of)
            self._lines.clear()
            self._state.occupancy.touched_job_ids.update(self._state.running)
        return self._times

    def _is_noted(self, job: JobRecord, arrays: GpuArrays) -> bool:
        """Return whether what a job has had goes on as was noted, on GPUs that hold what they held then.

        Nobody asks for that of one that leaves its GPUs.
        """
        if job.phase is Phase.STOPPING:
            return True
        if self._lines.get(job.request.job_id) != service_line(job):
            return False
        return arrays.changed.isdisjoint([arrays.position_of.get(part.gpu_id, -1) for part in job.assignments])

    def _note(self, times: KeptRemainingTimes, view: SchedulingView) -> None:
        state, lines = self._state, self._lines
        for job_id in state.occupancy.touched_job_ids:
            job = state.jobs[job_id]
            lines[job_id] = service_line(job)
            times.put(
                view,
                job,
                micro_batch_size=job.shape.micro_batch_size,
                submitted_at_ms=job.times.submitted_at_ms,
                started_at_ms=job.times.started_at_ms,
                pace_ms=job.pace_ms or inf,
            )
        state.occupancy.touched_job_ids.clear()
        if len(lines) > IDS_PER_JOB_MAX * len(state.running) + UNUSED_LINES_MAX:
            self._lines = {job_id: line for job_id, line in lines.items() if job_id in state.running}
