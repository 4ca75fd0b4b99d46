"""What the same jobs would take with a device each: computed, never claimed to be run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveJob:
    """One job as it would run alone.

    Attributes:
        submitted_at_ms: When it was handed in.
        start_up_ms: From start to end without its steps (imports, data, end), as measured alone.
        step_ms: One step, as measured alone.
        steps: All steps of the job.
    """

    submitted_at_ms: int
    start_up_ms: float
    step_ms: float
    steps: int

    @property
    def duration_ms(self) -> float:
        """From start to end."""
        return self.start_up_ms + self.steps * self.step_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How long a set of jobs took, milliseconds.

    Attributes:
        makespan_ms: Last end minus first submission.
        mean_jct_ms: Mean of end minus submission.
    """

    makespan_ms: float
    mean_jct_ms: float


def outcome_of(spans_ms: Sequence[tuple[float, float]]) -> Outcome:
    """Returns makespan and mean completion time of (submitted, ended) instants."""
    first = min(submitted for submitted, _ in spans_ms)
    last = max(ended for _, ended in spans_ms)
    mean = sum(ended - submitted for submitted, ended in spans_ms) / len(spans_ms)
    return Outcome(makespan_ms=last - first, mean_jct_ms=mean)


def run_exclusively(jobs: Sequence[ExclusiveJob], devices: int) -> Outcome:
    """Runs the jobs first come first served on devices without sharing.

    No scheduling delay is charged: a perfect first-in-first-out scheduler.
    """
    free_at_ms = [0.0] * devices
    spans = []
    for job in sorted(jobs, key=lambda job: job.submitted_at_ms):
        start_ms = max(heapq.heappop(free_at_ms), float(job.submitted_at_ms))
        heapq.heappush(free_at_ms, start_ms + job.duration_ms)
        spans.append((float(job.submitted_at_ms), start_ms + job.duration_ms))
    return outcome_of(spans)
