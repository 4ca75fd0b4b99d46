"""Watches foreign jobs from beat to beat: steps from what they print, windows alone and with the same others.

Of a job that prints no steps the period of its utilization counts instead, and is told apart throughout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from cotenant.engines.job_tag import JobTag
from cotenant.job_settings import JobSettings
from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.observing.foreign_jobs import ForeignJob
from cotenant_agent.observing.silent_jobs import SilentJobs
from cotenant_agent.progress_reading.log_progress import LogProgress
from cotenant_agent.progress_reading.progress import ProgressTrack
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
_SOLO_WINDOWS_MAX = 5
"""Of a job that was seen alone for long the newest count: it may take another time for a step than at its beginning."""
_SILENCE_NS = 60_000_000_000
"""After so long without a step a job is taken for what it is now: its co-located jobs are measured with it."""


class UsedDevices(GpuInventory, Protocol):
    """Devices that know who uses them."""

    def users(self) -> Mapping[str, frozenset[int]]:
        """Return the processes on each device, by GPU id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMeasuredJob(MeasuredJob):
    """The same with the job's id, which never leaves this machine; without a graph nothing of it does.

    Attributes:
        began_ticks: See `ForeignJob`: the kernel gives the numbers of processes again.
        is_by_period: Its steps are periods of its utilization.
    """

    job_id: str
    began_ticks: int = 0
    is_by_period: bool = False

    @property
    def identity(self) -> tuple[str, int, bool]:
        """What windows of the same job have in common."""
        return self.job_id, self.began_ticks, self.is_by_period


@dataclass(slots=True)
class _Watched:
    """One job that is there now.

    Attributes:
        key: Another one as soon as its steps are told by something else, so that no window mixes the two.
        log: Where it prints; None = into no file.
        began_ticks: When the first of its processes began, since the machine did; 0 = not known.
        progress: None = it prints into no file.
        seen_ns: When it was seen first.
        co_located: Jobs on its devices.
    """

    key: AttemptKey
    log: Path | None
    began_ticks: int
    progress: LogProgress | None
    seen_ns: int
    is_by_period: bool = False
    co_located: frozenset[str] = frozenset()
    track: ProgressTrack = field(default_factory=ProgressTrack)
    memory_peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWindow:
    """What was measured of one job, alone or with the same co-located jobs throughout.

    Attributes:
        others: Jobs on the same device meanwhile.
        solo_step_ms: Of the same job alone, as far as it was seen; 0 = never.
        is_by_period: Its steps are periods of its utilization, which may be more or fewer than its steps.
    """

    job_id: str
    others: tuple[str, ...]
    window: MeasurementWindow
    solo_step_ms: float = 0.0
    is_by_period: bool = False

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
        """Say whether a predictor can learn from it: all jobs have told their graph and batch, and it its steps."""
        return not self.is_by_period and all(job.graph_sha256 for job in (self.window.job, *self.window.others))


class Observer:
    """Observes one machine.

    Args:
        inventory: Its devices.
        find_jobs: Finds the jobs of processes.
        campaign: By which this machine is known where profiles are kept.
        make_id: Makes a new unique id.
        silent_jobs: Finds the periods of jobs that print no steps; None = they are not measured.
    """

    def __init__(
        self,
        inventory: UsedDevices,
        find_jobs: Callable[[Mapping[str, frozenset[int]]], Iterable[ForeignJob]],
        *,
        campaign: str,
        make_id: Callable[[], str],
        silent_jobs: SilentJobs | None = None,
    ) -> None:
        self._inventory = inventory
        self._silent = silent_jobs
        self._find_jobs = find_jobs
        devices = {gpu.gpu_id: gpu.device for gpu in inventory.describe()}
        self._recorder = MeasurementWindowRecorder(campaign=campaign, devices=devices, make_id=make_id)
        self._watched: dict[str, _Watched] = {}
        self._solo: dict[tuple[tuple[str, int, bool], bool], deque[tuple[int, int]]] = {}
        self._seen = 0
        self._owners: set[str] = set()
        self._wide: dict[str, int] = {}
        self._hidden: set[str] = set()

    @property
    def silent_job_ids(self) -> list[str]:
        """Jobs of which nothing tells any step."""
        return sorted(job_id for job_id, job in self._watched.items() if not job.track.steps_done)

    @property
    def hidden_job_ids(self) -> frozenset[str]:
        """Jobs of other accounts, whose output this one may not see."""
        return frozenset(self._hidden)

    @property
    def wide_jobs(self) -> Mapping[str, int]:
        """How many devices the jobs hold that hold several: of them and their co-located jobs no window is told."""
        return self._wide

    @property
    def seen_owners(self) -> frozenset[str]:
        """Whose jobs were there: `slurm`, `ray`, `group`, as their ids begin."""
        return frozenset(self._owners)

    def beat(self, now_ns: int) -> list[ObservedWindow]:
        """Look once; return the windows that have ended."""
        jobs = {job.job_id: job for job in self._find_jobs(self._inventory.users())}
        self._watch(jobs, now_ns)
        self._wide = {job_id: len(job.gpu_ids) for job_id, job in jobs.items() if len(job.gpu_ids) > 1}
        self._hidden = {job_id for job_id, job in jobs.items() if job.is_hidden}
        self._sample_silent(jobs)
        for job_id in jobs:
            self._read_steps(job_id, now_ns)
        self._recorder.look([self._living(job) for job in jobs.values()], now_ns // 1_000_000)
        self._recorder.settle(
            one.key
            for one in self._watched.values()
            if not one.track.steps_done and now_ns - one.seen_ns >= _SILENCE_NS
        )
        processes = {
            self._watched[job_id].key: JobProcesses(gpu_ids=job.gpu_ids, pids=job.pids) for job_id, job in jobs.items()
        }
        reading = self._inventory.observe(processes)
        observations = [_observation(self._watched[key.job_id], reading.jobs.get(key, JobUsage())) for key in processes]
        self._recorder.add(observations, reading.gpus, now_ns // 1_000_000)
        return self._ended()

    def close(self, now_ns: int) -> list[ObservedWindow]:
        """End all windows that still grow."""
        self._recorder.look([], now_ns // 1_000_000)
        return self._ended()

    def _watch(self, jobs: Mapping[str, ForeignJob], now_ns: int) -> None:
        """Follow new jobs from here on; forget those that have ended, and those that go on in another file."""
        for job_id in self._watched.keys() - jobs.keys():
            del self._watched[job_id]
            if len(self._solo) > _JOBS_REMEMBERED_MAX:
                self._solo = {known: windows for known, windows in self._solo.items() if known[0][0] != job_id}
        for job_id, watched in list(self._watched.items()):
            if (watched.log, watched.began_ticks) != (jobs[job_id].log, jobs[job_id].began_ticks):
                del self._watched[job_id]
        for job_id in jobs.keys() - self._watched.keys():
            self._owners.add(job_id.partition("/")[0])
            job = jobs[job_id]
            progress = LogProgress(job.log, "") if job.log is not None else None
            if progress is not None:
                progress.skip_to_end()
            key = self._new_key(job_id)
            self._watched[job_id] = _Watched(key, job.log, job.began_ticks, progress, now_ns)

    def _sample_silent(self, jobs: Mapping[str, ForeignJob]) -> None:
        """Have those sampled of which nothing printed tells any step; what disturbs them begins their series anew."""
        if self._silent is None:
            return
        silent = {}
        for job_id, job in jobs.items():
            watched = self._watched[job_id]
            co_located = frozenset(other for other, one in jobs.items() if set(one.gpu_ids) & set(job.gpu_ids))
            if co_located != watched.co_located:
                watched.co_located = co_located
                self._silent.restart(watched.key)
            if watched.is_by_period or not watched.track.steps_done:
                silent[watched.key] = JobProcesses(gpu_ids=job.gpu_ids, pids=job.pids)
        self._silent.watch(silent)

    def _read_steps(self, job_id: str, now_ns: int) -> None:
        watched = self._watched[job_id]
        printed = watched.progress.read(now_ns) if watched.progress is not None else []
        if printed and watched.is_by_period:
            watched = self._renew(job_id, is_by_period=False)
        for report in printed:
            watched.track.accept(report)
        if self._silent is None or (watched.track.steps_done and not watched.is_by_period):
            return
        periods = self._silent.steps(watched.key, now_ns)
        if periods and not watched.is_by_period:
            watched = self._renew(job_id, is_by_period=True)
        if not periods:
            # Time without a period is no time of steps.
            watched.track.interrupt(is_paused=False)
        for report in periods:
            watched.track.accept(report)

    def _renew(self, job_id: str, *, is_by_period: bool) -> _Watched:
        """Begin anew with a job whose steps are told by something else from now on."""
        before = self._watched[job_id]
        key = self._new_key(job_id)
        if self._silent is not None:
            self._silent.rename(before.key, key)
        renewed = replace(before, key=key, is_by_period=is_by_period, track=ProgressTrack(), memory_peak_bytes=0)
        self._watched[job_id] = renewed
        return renewed

    def _new_key(self, job_id: str) -> AttemptKey:
        self._seen += 1
        return AttemptKey(job_id=job_id, attempt=self._seen, fence=0)

    def _living(self, job: ForeignJob) -> LivingAttempt:
        watched = self._watched[job.job_id]
        measured = _measured(job, is_by_period=watched.is_by_period)
        return LivingAttempt(key=watched.key, gpu_ids=job.gpu_ids, job=measured)

    def _ended(self) -> list[ObservedWindow]:
        due = self._recorder.due()
        self._recorder.mark_delivered({window.window_id for window in due})
        return [self._told(window, window.job) for window in due if isinstance(window.job, ForeignMeasuredJob)]

    def _told(self, window: MeasurementWindow, job: ForeignMeasuredJob) -> ObservedWindow:
        clear, doubtful = ((job.identity, is_doubtful) for is_doubtful in (False, True))
        if not window.others:
            known = doubtful if window.quality_flags else clear
            self._solo.setdefault(known, deque(maxlen=_SOLO_WINDOWS_MAX)).append((window.steps, window.window_ms))
        # What others disturbed counts only where nothing better is known.
        alone = self._solo.get(clear) or self._solo.get(doubtful) or ()
        others = tuple(one.job_id for one in window.others if isinstance(one, ForeignMeasuredJob))
        solo_step_ms = sum(took_ms for _, took_ms in alone) / sum(steps for steps, _ in alone) if alone else 0.0
        return ObservedWindow(
            job_id=job.job_id,
            others=others,
            window=window,
            solo_step_ms=solo_step_ms,
            is_by_period=job.is_by_period,
        )


def _measured(job: ForeignJob, *, is_by_period: bool) -> ForeignMeasuredJob | None:
    """Return a job as it is measured; None = it holds several devices, of which a window cannot tell."""
    if len(job.gpu_ids) != 1:
        return None
    tag = job.tag or JobTag()
    is_told = bool(tag.graph_sha256 and tag.global_batch_size)
    return ForeignMeasuredJob(
        job_id=job.job_id,
        began_ticks=job.began_ticks,
        is_by_period=is_by_period,
        graph_sha256=tag.graph_sha256 if is_told else "",
        settings=JobSettings(global_batch_size=max(tag.global_batch_size, 1)),
    )


def _observation(watched: _Watched, usage: JobUsage) -> AttemptObservation:
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
