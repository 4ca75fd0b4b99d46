"""Measurement windows of running jobs: steps alone or with the same co-located jobs, recorded without any name.

A measurement window grows with every heartbeat. The first heartbeat of an attempt is its warm-up, and the first one
after a change of co-located jobs, or of who of them stands still, mixes two situations: neither counts. A window ends
when the co-located jobs change, when one of them is paused or goes on, when the job ends, or after five minutes. There
is none of a job whose owner does not want it, of a job co-located with such a job, and of a job without predictions (no
graph, several devices). Pure: clock and ids are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from cotenant_agent.records import (
    AttemptKey,
    AttemptObservation,
    GpuReading,
    LivingAttempt,
    MeasuredJob,
    MeasurementWindow,
)

WINDOW_MS_LEAST = 1_000
WINDOW_MS_MOST = 300_000
STEPS_MIN = 5
NEIGHBOURS_MAX = 3
WINDOWS_PER_HOUR_MAX = 30
"""Of one attempt: co-located jobs that come and go all the time teach no more than that."""
WINDOWS_KEPT_MAX = 500
WINDOWS_PER_BEAT_MAX = 20
UNSTEADY_RATIO = 0.1
"""Median deviation of the windows' step times, as a share of their median."""
FOREIGN_LOAD_RATIO = 0.1
"""Use of the device by others than the jobs of this node."""
_FOREIGN_LOAD = "foreign_load"
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Gathered:
    """The heartbeats of a measurement window that is still growing."""

    windows: list[AttemptObservation] = field(default_factory=list)
    readings: list[GpuReading] = field(default_factory=list)


@dataclass(slots=True)
class _ObservedAttempt:
    """One living attempt.

    Attributes:
        others: What may be recorded of its co-located jobs; None = nothing.
        pause_changes: How often it or one of them has begun or ceased to stand still.
        is_settled: A heartbeat has passed since the co-located jobs changed, or since one was paused or went on.
        ended_ms: When its last measurement windows ended.
    """

    living_attempt: LivingAttempt
    neighbours: frozenset[AttemptKey]
    others: tuple[MeasuredJob, ...] | None
    pause_changes: int = 0
    is_settled: bool = False
    gathered: _Gathered = field(default_factory=_Gathered)
    ended_ms: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOWS_PER_HOUR_MAX))


class MeasurementWindowRecorder:
    """Gathers measurement windows until the scheduler has them; the oldest are dropped when it is away for long.

    Args:
        campaign: By which this machine is known where profiles are kept.
        devices: Device type by GPU.
        make_id: Makes a new unique id.
        collects: False: nothing is ever recorded here.
    """

    def __init__(
        self, *, campaign: str, devices: Mapping[str, str], make_id: Callable[[], str], collects: bool = True
    ) -> None:
        self._campaign = campaign
        self._devices = devices
        self._make_id = make_id
        self.collects = collects
        self._observed: dict[AttemptKey, _ObservedAttempt] = {}
        self._seen: list[tuple[AttemptKey, int]] = []
        self._finished: deque[MeasurementWindow] = deque(maxlen=WINDOWS_KEPT_MAX)

    def look(self, living: Sequence[LivingAttempt], now_ms: int) -> None:
        """Notes which jobs run where; called often, to see jobs that come and go between two heartbeats."""
        seen = [(living_attempt.key, living_attempt.pause_changes) for living_attempt in living]
        if not self.collects or seen == self._seen:
            return
        self._seen = seen
        for key in sorted(self._observed.keys() - {living_attempt.key for living_attempt in living}):
            self._finish(self._observed.pop(key), now_ms)
        for living_attempt in living:
            co_located = [
                other
                for other in living
                if other is not living_attempt and set(other.gpu_ids) & set(living_attempt.gpu_ids)
            ]
            neighbours = frozenset(other.key for other in co_located)
            pause_changes = sum(one.pause_changes for one in (living_attempt, *co_located))
            known = self._observed.get(living_attempt.key)
            if known is None:
                self._observed[living_attempt.key] = _ObservedAttempt(
                    living_attempt, neighbours, _describe(living_attempt, co_located), pause_changes
                )
            elif (known.neighbours, known.pause_changes) != (neighbours, pause_changes):
                self._finish(known, now_ms)
                known.neighbours, known.others, known.is_settled = (
                    neighbours,
                    _describe(living_attempt, co_located),
                    False,
                )
                known.pause_changes = pause_changes

    def add(self, observations: Iterable[AttemptObservation], readings: Iterable[GpuReading], now_ms: int) -> None:
        """Takes the windows of one heartbeat in."""
        windows = {item.key: item for item in observations if item.key in self._observed and item.window_steps > 0}
        by_gpu = {reading.gpu_id: reading for reading in readings}
        for key, window in windows.items():
            observed = self._observed[key]
            # What a co-located job does before its first step is no training.
            if observed.is_settled and all(self._observed[other].is_settled for other in observed.neighbours):
                self._grow(
                    observed,
                    window,
                    by_gpu.get(observed.living_attempt.gpu_ids[0] if observed.living_attempt.gpu_ids else ""),
                )
        for key in windows:
            observed = self._observed[key]
            observed.is_settled = True
            if sum(item.window_ms for item in observed.gathered.windows) >= WINDOW_MS_MOST:
                self._finish(observed, now_ms)

    def settle(self, keys: Iterable[AttemptKey]) -> None:
        """Takes these for training though no step of theirs is known: co-located jobs can be measured."""
        for observed in (self._observed[key] for key in keys if key in self._observed):
            observed.is_settled = True

    def due(self) -> list[MeasurementWindow]:
        """What to send with the next heartbeat, oldest first."""
        return list(self._finished)[:WINDOWS_PER_BEAT_MAX]

    def mark_delivered(self, window_ids: Collection[str]) -> None:
        """The scheduler has these."""
        left = [
            measurement_window
            for measurement_window in self._finished
            if measurement_window.window_id not in window_ids
        ]
        self._finished = deque(left, maxlen=WINDOWS_KEPT_MAX)

    def _grow(self, observed: _ObservedAttempt, window: AttemptObservation, reading: GpuReading | None) -> None:
        if observed.others is None:
            return
        observed.gathered.windows.append(window)
        if reading is not None:
            observed.gathered.readings.append(reading)

    def _finish(self, observed: _ObservedAttempt, now_ms: int) -> None:
        """Ends the present measurement window; what is too short, or one too many within the hour, is dropped."""
        gathered, observed.gathered = observed.gathered, _Gathered()
        steps = sum(item.window_steps for item in gathered.windows)
        window_ms = sum(item.window_ms for item in gathered.windows)
        job, others, ended_ms = observed.living_attempt.job, observed.others, observed.ended_ms
        if job is None or others is None or steps < STEPS_MIN or window_ms < WINDOW_MS_LEAST:
            return
        if len(ended_ms) == WINDOWS_PER_HOUR_MAX and now_ms - ended_ms[0] < _HOUR_MS:
            return
        ended_ms.append(now_ms)
        is_alone = not others
        self._finished.append(
            MeasurementWindow(
                window_id=self._make_id(),
                campaign=self._campaign,
                device=self._devices.get(observed.living_attempt.gpu_ids[0], ""),
                job=job,
                others=others,
                steps=steps,
                window_ms=window_ms,
                utilization_ratio=_mean(item.utilization_ratio for item in gathered.windows),
                sm_activity_ratio=_mean(item.sm_activity_ratio for item in gathered.readings) if is_alone else None,
                memory_peak_bytes=max(item.memory_peak_bytes for item in gathered.windows) or None,
                power_watts=_mean(item.power_watts for item in gathered.readings) if is_alone else None,
                quality_flags=_doubts(gathered),
                under_mps=observed.living_attempt.under_mps,
            )
        )


def _describe(living_attempt: LivingAttempt, co_located: Sequence[LivingAttempt]) -> tuple[MeasuredJob, ...] | None:
    """What may be recorded of the co-located jobs; None when one of them, or the job itself, must not be recorded."""
    jobs = [other.job for other in co_located if other.job is not None]
    if living_attempt.job is None or len(jobs) < len(co_located) or len(co_located) > NEIGHBOURS_MAX:
        return None
    return tuple(jobs)


def _doubts(gathered: _Gathered) -> tuple[str, ...]:
    step_ms = [item.window_ms / item.window_steps for item in gathered.windows]
    typical_ms = median(step_ms)
    spread_ms = median(abs(value - typical_ms) for value in step_ms)
    flags = {
        _FOREIGN_LOAD: (_mean(item.foreign_ratio for item in gathered.readings) or 0.0) > FOREIGN_LOAD_RATIO,
        "unsteady": spread_ms > UNSTEADY_RATIO * typical_ms,
    }
    return tuple(name for name, is_set in flags.items() if is_set)


def window_doubts(gpu_ids: Collection[str], readings: Iterable[GpuReading]) -> tuple[str, ...]:
    """Reasons for doubt of one window of an attempt: a window alone cannot scatter, but others may use its devices."""
    shares = (reading.foreign_ratio or 0.0 for reading in readings if reading.gpu_id in gpu_ids)
    return (_FOREIGN_LOAD,) if max(shares, default=0.0) > FOREIGN_LOAD_RATIO else ()


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what was measured; None when nothing was."""
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None
