"""Figures of a measurement window from the instants at which steps ended. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cotenant_profiler.errors import WorkerError

_STEADY_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: when it began and ended, and the CPU time of the process at its end.

    Attributes:
        begin_ns: CLOCK_MONOTONIC, nanoseconds.
        end_ns: CLOCK_MONOTONIC, nanoseconds.
        processor_ns: CPU time of the process at the end, nanoseconds.
        device_ms: Time of the step by the clock of the device; None where the device has none.
    """

    begin_ns: int
    end_ns: int
    processor_ns: int
    device_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """What one job did inside a window.

    Attributes:
        steps: Whole steps inside the window.
        step_ms_mean: Mean duration; the only figure from which slowdowns are computed.
        step_ms_p50: Median duration. Under time slicing it hides the slices lost: never compare jobs by it.
        step_ms_p95: 95th percentile.
        utilization_ratio: CPU time over wall time between the first and the last step, 0 to 1.
        rate_check_ratio: Mean duration times steps per second; 1 unless time is lost between steps.
        device_step_ms_mean: Mean duration by the clock of the device, 0 where it has none.
    """

    steps: int
    step_ms_mean: float
    step_ms_p50: float
    step_ms_p95: float
    utilization_ratio: float
    rate_check_ratio: float
    device_step_ms_mean: float = 0.0


def window_figures(records: Sequence[StepRecord], begin_ns: int, end_ns: int) -> WindowFigures:
    """Return the figures of the steps that lie wholly inside [begin_ns, end_ns].

    Raises:
        WorkerError: Fewer than two steps do; the window is too short for this job.
    """
    before = [record for record in records if record.end_ns <= begin_ns]
    inside = [record for record in records if record.begin_ns >= begin_ns and record.end_ns <= end_ns]
    if len(inside) < 2:
        window_ms = (end_ns - begin_ns) / 1e6
        raise WorkerError(f"only {len(inside)} steps fit into the window of {window_ms:.0f} ms; lengthen the window")
    durations_ms = sorted((record.end_ns - record.begin_ns) / 1e6 for record in inside)
    mean_ms = sum(durations_ms) / len(durations_ms)
    elapsed_ms = (inside[-1].end_ns - inside[0].begin_ns) / 1e6
    return WindowFigures(
        steps=len(inside),
        step_ms_mean=mean_ms,
        step_ms_p50=percentile(durations_ms, 0.5),
        step_ms_p95=percentile(durations_ms, 0.95),
        utilization_ratio=_utilization_ratio(before[-1:] + inside),
        rate_check_ratio=mean_ms * len(inside) / elapsed_ms,
        device_step_ms_mean=sum(record.device_ms or 0.0 for record in inside) / len(inside),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the ascending values lie, interpolated."""
    position = share * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def is_steady(durations_ms: Sequence[float]) -> bool:
    """Whether the mean of the last five durations lies within a twentieth of that of the five before."""
    if len(durations_ms) < 10:
        return False
    newer = sum(durations_ms[-5:]) / 5
    older = sum(durations_ms[-10:-5]) / 5
    return abs(newer - older) <= _STEADY_RATIO * older


def _utilization_ratio(records: Sequence[StepRecord]) -> float:
    """CPU time over wall time between the ends of the first and the last record."""
    elapsed_ns = records[-1].end_ns - records[0].end_ns
    busy_ns = records[-1].processor_ns - records[0].processor_ns
    return min(1.0, busy_ns / elapsed_ns)
