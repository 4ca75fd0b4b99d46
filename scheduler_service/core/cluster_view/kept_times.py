"""How long running jobs still run and what they have had, brought up to date by what events have touched."""

from __future__ import annotations

from math import inf

from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays
from scheduler_service.core.cluster_view.remaining_times import KeptRemainingTimes
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.state import ClusterState


class KeptTimes:
    """The remaining times of one state, built when they are first read.

    Args:
        state: The jobs, and every change of nodes.

    Attributes:
        touched: Jobs that events have touched since the last reading; the owner adds them.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._layout = -1
        self._times: KeptRemainingTimes | None = None
        self.touched: set[str] = set()

    def read(self, view: SchedulingView, arrays: GpuArrays) -> KeptRemainingTimes:
        """Return what the times at a view's instant follow from; GPUs at their positions in the arrays."""
        state, times = self._state, self._times
        if times is None or self._layout != state.occupancy.layout:
            self._layout = state.occupancy.layout
            times = self._times = KeptRemainingTimes(arrays.position_of)
            self.touched.update(state.running)
        for job_id in self.touched:
            job = state.jobs.get(job_id)
            if job is not None and job.holds_gpus:
                times.put(
                    view,
                    job,
                    micro_batch_size=job.shape.micro_batch_size,
                    submitted_at_ms=job.times.submitted_at_ms,
                    started_at_ms=job.times.started_at_ms,
                    pace_ms=job.pace_ms or inf,
                )
        self.touched.clear()
        return times
