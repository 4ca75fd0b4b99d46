"""PAB, performance-aware bin packing: place by free memory, and re-queue the job that made another half as fast.

What it does:
    Places jobs as obp does. Where a job, a minute after the newest one came to its GPU, makes at most half as many
    steps per second as it made alone, the newest one is stopped with a checkpoint and waits in the queue again.

Why:
    The baseline that predicts nothing and corrects mistakes afterwards; what they cost is measured against predicting.

Source:
    The baseline PAB of Yeung et al., "Horus: Interference-Aware and Prediction-Based Scheduling in Deep Learning
    Systems", section 5.2: detected slowdown, 50 % drop in steps per second, a warm-up of up to 60 s.

Where we differ:
    The paper leaves open which job it re-queues; here the one that came last. The state before is the measured step
    time alone; a job that never ran alone triggers no re-queuing. A re-queued job does not return to the same partner
    while its max_slowdown_ratio forbids what was observed. Placement asks for every job's consent, as under obp.

Cost:
    That of obp, and one look at every running job that was measured to be slower than alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Stop
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.planning.policy_parameters import require_not_negative, require_positive
from scheduler_service.core.records import Reason
from scheduler_service.policies.packing.free_memory_placement import pack_by_free_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceAwareBinPacking:
    """Most free memory first; the newest job leaves where another lost too much."""

    settles: ClassVar[bool] = True

    warm_up_ms: int = field(
        default=60_000, metadata={"description": "time after a placement in which no job is judged, in ms"}
    )
    drop_ratio: float = field(
        default=0.5, metadata={"description": "share of the steps per second whose loss is too much; 0.5 = half"}
    )
    interval_ms: int = field(default=10_000, metadata={"description": "how often step times are looked at, in ms"})

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_not_negative(warm_up_ms=self.warm_up_ms)
        require_positive(interval_ms=self.interval_ms)
        if not 0 < self.drop_ratio < 1:
            raise PolicyParameterError(f"drop_ratio must lie between 0 and 1, but is {self.drop_ratio}")

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return the stops, then one decision per pending job."""
        return [*self._stops(view), *pack_by_free_memory(view)]

    def next_look_ms(self, view: SchedulingView) -> int | None:
        """Return when the next warm-up ends after which a job is judged; see `Policy`."""
        judged = (self._newest_co_located(view, victim) for victim, _ in self._victims(view))
        ends_ms = [newest.started_at_ms + self.warm_up_ms for newest in judged if newest is not None]
        return min((end_ms for end_ms in ends_ms if end_ms > view.now_ms), default=None)

    def heeds_report(self, *, lost_ratio: float) -> bool:
        """Return whether a job has lost too much; see `Policy`."""
        return lost_ratio >= self.drop_ratio

    def _victims(self, view: SchedulingView) -> Iterator[tuple[RunningJob, float]]:
        """Yield the running jobs that lost too much, each with the share of its steps per second that it lost."""
        lost_ratios = view.index.lost_ratios
        if max(lost_ratios.values(), default=0.0) < self.drop_ratio:  # as mostly
            return
        lost = {job_id: ratio for job_id, ratio in lost_ratios.items() if ratio >= self.drop_ratio}
        # Nothing that is asked of these jobs changes with time: they are read as they were last reported.
        reported = view.index.reported
        for job_id in lost if len(lost) < 2 else [job_id for job_id in reported if job_id in lost]:
            if not reported[job_id].is_stopping:
                yield reported[job_id], lost[job_id]

    def _stops(self, view: SchedulingView) -> Iterator[Stop]:
        stopped: set[str] = set()
        for victim, lost_ratio in self._victims(view):
            newest = self._newest_co_located(view, victim)
            if newest is None or view.now_ms - newest.started_at_ms < self.warm_up_ms:
                continue
            if newest.request.job_id not in stopped:
                stopped.add(newest.request.job_id)
                numbers = {"lost_ratio": lost_ratio, "drop_ratio": self.drop_ratio}
                reason = Reason(code="STOPPED_FOR_SLOWDOWN", numbers=numbers, job_ids=(victim.request.job_id,))
                yield Stop(job_id=newest.request.job_id, reason=reason)

    def _newest_co_located(self, view: SchedulingView, victim: RunningJob) -> RunningJob | None:
        """Return the job that came last to the GPUs of a job; None while one leaves, or it runs alone."""
        entries = [view.gpus[part.gpu_id] for part in victim.assignments if part.gpu_id in view.gpus]
        if any(entry.is_releasing for entry in entries):
            return None
        there = [view.index.reported[job_id] for entry in entries for job_id in entry.job_ids]
        if len({job.request.job_id for job in there}) < 2:
            return None
        return max(there, key=lambda job: (job.started_at_ms, job.request.job_id))
