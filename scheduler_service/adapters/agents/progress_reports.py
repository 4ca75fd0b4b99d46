"""Progress of jobs, thinned out: heartbeats come for ever, the log must not grow with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_service.core.events import JobProgressed


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """What waits of one attempt.

    Attributes:
        window_began_at_ms: When the earliest waiting window began.
    """

    passed_on_at_ms: int
    last: JobProgressed
    waiting: JobProgressed | None = None
    window_began_at_ms: int | None = None

    def gather(self, report: JobProgressed, *, now_ms: int) -> None:
        self.last = report
        self.waiting = report if self.waiting is None else merged(self.waiting, report)
        if report.window_steps > 0 and self.window_began_at_ms is None:
            self.window_began_at_ms = now_ms - report.window_ms

    def hand_over(self, *, now_ms: int) -> JobProgressed | None:
        """What waits, with how long ago its earliest window began: co-located jobs may have changed since."""
        waiting, began_at_ms = self.waiting, self.window_began_at_ms
        self.waiting = self.window_began_at_ms = None
        if waiting is None or began_at_ms is None:
            return waiting
        return replace(waiting, window_span_ms=max(now_ms - began_at_ms, 0))


class ProgressReports:
    """Passes on at most one report per job and interval; what lies between is merged, so no step is left out.

    Args:
        interval_ms: 0 = pass on everything.
    """

    def __init__(self, *, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._jobs: dict[str, _Gathered] = {}

    def add(self, report: JobProgressed, *, now_ms: int) -> None:
        """Take a report; one without news is dropped."""
        gathered = self._jobs.get(report.job_id)
        if gathered is None or gathered.last.attempt != report.attempt or gathered.last.fence != report.fence:
            first = now_ms - self._interval_ms
            self._jobs[report.job_id] = gathered = _Gathered(passed_on_at_ms=first, last=report)
            gathered.gather(report, now_ms=now_ms)
        elif _says_more(report, gathered.last):
            gathered.gather(report, now_ms=now_ms)

    def due(self, *, now_ms: int) -> Sequence[JobProgressed]:
        """Return the reports whose interval is over."""
        due = []
        for gathered in self._jobs.values():
            if gathered.waiting is not None and now_ms - gathered.passed_on_at_ms >= self._interval_ms:
                due.append(gathered.hand_over(now_ms=now_ms))
                gathered.passed_on_at_ms = now_ms
        return [report for report in due if report is not None]

    def forget(self, job_id: str, fence: int, *, now_ms: int) -> JobProgressed | None:
        """Drop an attempt that has ended; return what was still waiting of it. A newer attempt stays."""
        gathered = self._jobs.get(job_id)
        if gathered is None or gathered.last.fence > fence:
            return None
        del self._jobs[job_id]
        return gathered.hand_over(now_ms=now_ms) if gathered.last.fence == fence else None


def merged(earlier: JobProgressed, later: JobProgressed) -> JobProgressed:
    """Return one report over both windows."""
    return replace(
        later,
        window_steps=earlier.window_steps + later.window_steps,
        window_ms=earlier.window_ms + later.window_ms,
        loss=later.loss if later.loss is not None else earlier.loss,
        utilization_ratio=later.utilization_ratio if later.utilization_ratio is not None else earlier.utilization_ratio,
        memory_peak_bytes=max(earlier.memory_peak_bytes, later.memory_peak_bytes),
        checkpoint_step=max(earlier.checkpoint_step, later.checkpoint_step),
        steps_total=later.steps_total or earlier.steps_total,
        quality_flags=tuple(sorted({*earlier.quality_flags, *later.quality_flags})),
    )


def _says_more(report: JobProgressed, last: JobProgressed) -> bool:
    return (
        report.window_steps > 0
        or report.steps_done != last.steps_done
        or report.checkpoint_step != last.checkpoint_step
        or report.memory_peak_bytes != last.memory_peak_bytes
        or report.steps_total != last.steps_total
    )
