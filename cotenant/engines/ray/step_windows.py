"""Step times of Ray's jobs, from what they report: windows alone or with the same co-located jobs throughout."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from cotenant.engines.job_tag import JobTag
from cotenant.engines.ray.job_records import PROGRESS, ProgressRecord, read_records
from cotenant.engines.ray.tables import RayTables
from cotenant.engines.records import EngineJob, EnginePhase, EngineState
from cotenant.quantities import format_slowdown
from cotenant.v1 import prediction_pb2, resources_pb2

WINDOW_MS_LEAST: Final = 5_000
WINDOW_MS_MOST: Final = 300_000
STEPS_MIN: Final = 5
NEIGHBOURS_MAX: Final = 3
UNSTEADY_RATIO: Final = 0.1
"""Median deviation of the readings' step times, as a share of their median."""
JOBS_REMEMBERED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """What one job did on one GPU.

    Attributes:
        others: Jobs on the same GPU meanwhile.
        step_ms: Time of one step.
        solo_step_ms: Of the same job alone, as far as it was seen; 0 = never.
        message: As the predictor learns from it; None = a job has not told its graph and batch, or there are too many.
    """

    job_id: str
    device: str
    others: tuple[str, ...]
    window_ms: int
    step_ms: float
    solo_step_ms: float
    message: resources_pb2.MeasurementWindow | None

    def line(self) -> str:
        """Return it in words."""
        parts = [
            f"job {self.job_id} on {self.device}: {self.step_ms:.1f} ms a step over {self.window_ms / 1000:.0f} s",
            f"with {', '.join(self.others)}" if self.others else "alone",
        ]
        if self.others and self.solo_step_ms:
            parts.append(format_slowdown(self.step_ms / self.solo_step_ms - 1.0))
        return ", ".join(parts)


@dataclass(slots=True)
class _Growing:
    """A window that still grows.

    Attributes:
        neighbours: Jobs on the same GPU; another set ends it.
        readings: Steps and instants, each different from the one before; the first report after a change begins it.
    """

    job: EngineJob
    neighbours: tuple[EngineJob, ...]
    device: str
    readings: list[ProgressRecord] = field(default_factory=list)

    @property
    def neighbour_ids(self) -> tuple[str, ...]:
        return tuple(one.job_id for one in self.neighbours)

    @property
    def window_ms(self) -> int:
        return self.readings[-1].at_ms - self.readings[0].at_ms if self.readings else 0


class StepWindows:
    """Follows the jobs from reading to reading.

    Args:
        tables: Reach Ray.
    """

    def __init__(self, tables: RayTables) -> None:
        self._tables = tables
        self._campaign = f"collected_{secrets.token_hex(4)}"
        self._growing: dict[str, _Growing] = {}
        self._solo: dict[str, tuple[int, int]] = {}
        self._ended: list[StepWindow] = []

    def look(self, state: EngineState) -> None:
        """Take what the jobs have reported since the last reading."""
        reports = read_records(self._tables, PROGRESS, ProgressRecord)
        running = {job.job_id: job for job in state.jobs if _runs_on_one_gpu(job)}
        for job_id in self._growing.keys() - running.keys():
            self._end(self._growing.pop(job_id))
        for job_id, job in running.items():
            neighbours = tuple(one for one in running.values() if one is not job and _gpu_of(one) == _gpu_of(job))
            growing = self._growing.get(job_id)
            if growing is not None and growing.neighbour_ids != tuple(one.job_id for one in neighbours):
                self._end(growing)
                growing = None
            if growing is None:
                gpu = state.gpus.get(_gpu_of(job))
                growing = self._growing[job_id] = _Growing(job, neighbours, gpu.device if gpu else "")
            self._grow(growing, reports.get(job_id), are_training=all(one in reports for one in growing.neighbour_ids))

    def take(self) -> list[StepWindow]:
        """Return the windows that have ended since this was asked last."""
        ended, self._ended = self._ended, []
        return ended

    def _grow(self, growing: _Growing, report: ProgressRecord | None, *, are_training: bool) -> None:
        # What a co-located job does before its first step is no training.
        if report is None or not report.at_ms or not are_training:
            growing.readings.clear()
            return
        last = growing.readings[-1] if growing.readings else None
        if last is not None and (report.steps < last.steps or report.at_ms < last.at_ms):
            # It began anew, or its clock was set.
            growing.readings.clear()
        if last is None or report.steps != last.steps:
            growing.readings.append(report)
        if growing.window_ms >= WINDOW_MS_MOST:
            self._end(growing)
            growing.readings = [report]

    def _end(self, growing: _Growing) -> None:
        if len(growing.readings) < 2 or not growing.device:
            return
        steps, window_ms = growing.readings[-1].steps - growing.readings[0].steps, growing.window_ms
        if steps < STEPS_MIN or window_ms < WINDOW_MS_LEAST:
            return
        job_id = growing.job.job_id
        if not growing.neighbours:
            known_steps, known_ms = self._solo.pop(job_id, (0, 0))
            self._solo[job_id] = known_steps + steps, known_ms + window_ms
            while len(self._solo) > JOBS_REMEMBERED_MAX:
                del self._solo[next(iter(self._solo))]
        solo_steps, solo_ms = self._solo.get(job_id, (0, 0))
        self._ended.append(
            StepWindow(
                job_id=job_id,
                device=growing.device,
                others=growing.neighbour_ids,
                window_ms=window_ms,
                step_ms=window_ms / steps,
                solo_step_ms=solo_ms / solo_steps if solo_steps else 0.0,
                message=_message(growing, steps, self._campaign),
            )
        )


def record_request(windows: list[StepWindow]) -> prediction_pb2.RecordMeasurementWindowsRequest | None:
    """Return what the predictor is told; None = nothing can be learned from these."""
    messages = [window.message for window in windows if window.message is not None]
    if not messages:
        return None
    return prediction_pb2.RecordMeasurementWindowsRequest(request_id=str(uuid.uuid4()), measurement_windows=messages)


def _message(growing: _Growing, steps: int, campaign: str) -> resources_pb2.MeasurementWindow | None:
    jobs = [_measured(job.tag) for job in (growing.job, *growing.neighbours)]
    told = [job for job in jobs if job is not None]
    if len(told) < len(jobs) or len(growing.neighbours) > NEIGHBOURS_MAX:
        return None
    return resources_pb2.MeasurementWindow(
        window_id=secrets.token_hex(16),
        campaign=campaign,
        device=growing.device,
        job=told[0],
        co_located_jobs=told[1:],
        steps=steps,
        window_ms=growing.window_ms,
        quality_flags=["unsteady"] if _is_unsteady(growing.readings) else [],
    )


def _measured(tag: JobTag | None) -> resources_pb2.MeasuredJob | None:
    if tag is None or not (tag.graph_sha256 and tag.global_batch_size):
        return None
    return resources_pb2.MeasuredJob(
        graph_sha256=tag.graph_sha256,
        settings=resources_pb2.JobSettings(global_batch_size=tag.global_batch_size),
    )


def _is_unsteady(readings: list[ProgressRecord]) -> bool:
    step_ms = list(_step_times(readings))
    typical_ms = median(step_ms)
    return median(abs(value - typical_ms) for value in step_ms) > UNSTEADY_RATIO * typical_ms


def _step_times(readings: list[ProgressRecord]) -> Iterator[float]:
    for before, after in pairwise(readings):
        yield (after.at_ms - before.at_ms) / (after.steps - before.steps)


def _runs_on_one_gpu(job: EngineJob) -> bool:
    return job.phase is EnginePhase.RUNNING and len(job.held_slots) == 1


def _gpu_of(job: EngineJob) -> str:
    held: Mapping[str, int] = job.held_slots
    return next(iter(held))
