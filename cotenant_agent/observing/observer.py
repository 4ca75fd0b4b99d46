"""Watches foreign jobs from beat to beat: steps from what they print, windows alone and with the same others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cotenant.engines.job_tag import JobTag
from cotenant.job_settings import JobSettings
from cotenant_agent.gpu_inventory import GpuInventory
from cotenant_agent.log_progress import LogProgress
from cotenant_agent.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.observing.foreign_jobs import ForeignJob
from cotenant_agent.progress import ProgressTrack
from cotenant_agent.records import (
    AttemptKey,
    AttemptObservation,
    JobProcesses,
    JobUsage,
    LivingAttempt,
    MeasuredJob,
    MeasurementWindow,
)

_JOBS_REMEMBERED_MAX = 1_000


class UsedDevices(GpuInventory, Protocol):
    """Devices that know who uses them."""

    def users(self) -> Mapping[str, frozenset[int]]:
        """Return the processes on each device, by GPU id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMeasuredJob(MeasuredJob):
    """The same with the job's id, which never leaves this machine; without a graph nothing of it does."""

    job_id: str


@dataclass(slots=True)
class _Watched:
    """One job that is there now.

    Attributes:
        progress: None = it prints into no file.
    """

    key: AttemptKey
    progress: LogProgress | None
    track: ProgressTrack = field(default_factory=ProgressTrack)
    memory_peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWindow:
    """What was measured of one job, alone or with the same co-located jobs throughout.

    Attributes:
        others: Jobs on the same device meanwhile.
        solo_step_ms: Of the same job alone, as far as it was seen; 0 = never.
    """

    job_id: str
    others: tuple[str, ...]
    window: MeasurementWindow
    solo_step_ms: float = 0.0

    @property
    def step_ms(self) -> float:
        """Time of one step."""
        return self.window.window_ms / self.window.steps

    @property
    def slowdown_ratio(self) -> float | None:
        """How much longer a step took than alone, 0.2 = 20 % longer; None = it was never seen alone."""
        return self.step_ms / self.solo_step_ms - 1.0 if self.others and self.solo_step_ms else None

    @property
    def is_reportable(self) -> bool:
        """Say whether a predictor can learn from it: all jobs have told their graph and batch."""
        return all(job.graph_sha256 for job in (self.window.job, *self.window.others))


class Observer:
    """Observes one machine.

    Args:
        inventory: Its devices.
        find_jobs: Finds the jobs of processes.
        campaign: By which this machine is known where profiles are kept.
        make_id: Makes a new unique id.
    """

    def __init__(
        self,
        inventory: UsedDevices,
        find_jobs: Callable[[Mapping[str, frozenset[int]]], Iterable[ForeignJob]],
        *,
        campaign: str,
        make_id: Callable[[], str],
    ) -> None:
        self._inventory = inventory
        self._find_jobs = find_jobs
        devices = {gpu.gpu_id: gpu.device for gpu in inventory.describe()}
        self._recorder = MeasurementWindowRecorder(campaign=campaign, devices=devices, make_id=make_id)
        self._watched: dict[str, _Watched] = {}
        self._solo: dict[tuple[str, bool], tuple[int, int]] = {}
        self._seen = 0

    @property
    def silent_job_ids(self) -> list[str]:
        """Jobs of which nothing tells any step."""
        return sorted(job_id for job_id, job in self._watched.items() if not job.track.steps_done)

    def beat(self, now_ns: int) -> list[ObservedWindow]:
        """Look once; return the windows that have ended."""
        jobs = {job.job_id: job for job in self._find_jobs(self._inventory.users())}
        self._watch(jobs)
        self._recorder.look([self._living(job) for job in jobs.values()], now_ns // 1_000_000)
        processes = {
            self._watched[job_id].key: JobProcesses(gpu_ids=job.gpu_ids, pids=job.pids) for job_id, job in jobs.items()
        }
        reading = self._inventory.observe(processes)
        observations = [
            _observation(self._watched[key.job_id], reading.jobs.get(key, JobUsage()), now_ns) for key in processes
        ]
        self._recorder.add(observations, reading.gpus, now_ns // 1_000_000)
        return self._ended()

    def close(self, now_ns: int) -> list[ObservedWindow]:
        """End all windows that still grow."""
        self._recorder.look([], now_ns // 1_000_000)
        return self._ended()

    def _watch(self, jobs: Mapping[str, ForeignJob]) -> None:
        """Follow new jobs from here on; forget those that have ended."""
        for job_id in self._watched.keys() - jobs.keys():
            del self._watched[job_id]
            if len(self._solo) > _JOBS_REMEMBERED_MAX:
                self._solo = {key: known for key, known in self._solo.items() if key[0] != job_id}
        for job_id in jobs.keys() - self._watched.keys():
            self._seen += 1
            log = jobs[job_id].log
            progress = LogProgress(log, "") if log is not None else None
            self._watched[job_id] = _Watched(AttemptKey(job_id=job_id, attempt=self._seen, fence=0), progress)

    def _living(self, job: ForeignJob) -> LivingAttempt:
        return LivingAttempt(key=self._watched[job.job_id].key, gpu_ids=job.gpu_ids, job=_measured(job))

    def _ended(self) -> list[ObservedWindow]:
        due = self._recorder.due()
        self._recorder.mark_delivered({window.stretch_id for window in due})
        return [self._told(window, window.job) for window in due if isinstance(window.job, ForeignMeasuredJob)]

    def _told(self, window: MeasurementWindow, job: ForeignMeasuredJob) -> ObservedWindow:
        is_doubtful = bool(window.quality_flags)
        if not window.others:
            steps, took_ms = self._solo.get((job.job_id, is_doubtful), (0, 0))
            self._solo[job.job_id, is_doubtful] = steps + window.steps, took_ms + window.window_ms
        # What others disturbed counts only where nothing better is known.
        steps, took_ms = self._solo.get((job.job_id, False)) or self._solo.get((job.job_id, True), (0, 0))
        others = tuple(one.job_id for one in window.others if isinstance(one, ForeignMeasuredJob))
        solo_step_ms = took_ms / steps if steps else 0.0
        return ObservedWindow(job_id=job.job_id, others=others, window=window, solo_step_ms=solo_step_ms)


def _measured(job: ForeignJob) -> ForeignMeasuredJob | None:
    """Return a job as it is measured; None = it holds several devices, of which a window cannot tell."""
    if len(job.gpu_ids) != 1:
        return None
    tag = job.tag or JobTag()
    is_told = bool(tag.graph_sha256 and tag.global_batch_size)
    return ForeignMeasuredJob(
        job_id=job.job_id,
        graph_sha256=tag.graph_sha256 if is_told else "",
        settings=JobSettings(global_batch_size=max(tag.global_batch_size, 1)),
    )


def _observation(watched: _Watched, usage: JobUsage, now_ns: int) -> AttemptObservation:
    for report in watched.progress.read(now_ns) if watched.progress is not None else ():
        watched.track.accept(report)
    window = watched.track.close_window()
    watched.memory_peak_bytes = max(watched.memory_peak_bytes, usage.memory_bytes or 0)
    return AttemptObservation(
        key=watched.key,
        steps_done=watched.track.steps_done,
        epoch=0,
        loss=None,
        window_steps=window.steps,
        window_ms=window.duration_ms,
        utilization_ratio=usage.utilization_ratio,
        memory_bytes=usage.memory_bytes,
        memory_peak_bytes=watched.memory_peak_bytes,
        checkpoint_step=0,
    )
