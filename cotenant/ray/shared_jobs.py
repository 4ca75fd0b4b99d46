"""The jobs of one driver, from their submission to their ends: they wait for orders, run, and give their GPUs back."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.ray.job_records import (
    JOB,
    ORDER,
    PROGRESS,
    JobRecord,
    OrderRecord,
    ProgressRecord,
    decode,
    encode,
    forget_job,
)
from cotenant.engines.ray.reading import SLOTS
from cotenant.engines.ray.tables import RayTables
from cotenant.errors import CotenantError
from cotenant.ray.attempts import Attempt, Attempts, Outcome, Work

BEAT_MS: Final = 2_000
END_MS_MAX: Final = 30_000
"""So long the process of a task that has returned may take to end: what runs on in it would keep the GPU for ever."""
LEAVE_S_MAX: Final = 5.0
SILENT_MS_MAX: Final = 60_000
"""After so long without a word from the bridge, or from a process that was started, its user is told once."""
_log = logging.getLogger("cotenant.ray")


class JobStoppedError(CotenantError):
    """An operator ended the job, or its process ended before its task."""


class _Stage(StrEnum):
    """Where a job is, as its driver sees it."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    """Its process is about to end; until it has, its GPU is its own."""
    ENDED = "ended"


@dataclass(slots=True)
class _Run:
    """What the watching thread keeps of a job.

    Attributes:
        since_ms: When its stage began; 0 = it is not known yet.
        is_told: Its user was told that nothing happens.
        killed_at_ms: When it is killed; 0 = it is not to end.
        begins_again: Its end is followed by another wait.
    """

    record: JobRecord
    stage: _Stage = _Stage.WAITING
    attempt: Attempt | None = None
    told_at_ms: int = -BEAT_MS
    since_ms: int = 0
    is_told: bool = False
    killed_at_ms: int = 0
    begins_again: bool = False
    outcome: Outcome | None = None


class SharedJob:
    """A task or an actor that waits for a GPU, holds a part of one, or has ended."""

    def __init__(self, job_id: str, work: Work, record: JobRecord, tables: RayTables) -> None:
        self.job_id = job_id
        self.work = work
        self.run = _Run(record)
        self._tables = tables
        self._started, self._ended = threading.Event(), threading.Event()
        self.is_to_end = threading.Event()
        self.grace_ms: int | None = None

    @property
    def note(self) -> str:
        """What cotenant said about it last: why it waits, or where it was placed and why."""
        return decode(OrderRecord, self._tables.read(ORDER + self.job_id)).note

    @property
    def progress(self) -> ProgressRecord:
        """What it has reported last."""
        return decode(ProgressRecord, self._tables.read(PROGRESS + self.job_id))

    @property
    def has_ended(self) -> bool:
        """It has given its GPU back."""
        return self._ended.is_set()

    def result(self, timeout_s: float | None = None) -> Any:  # noqa: ANN401 (whatever its function returns)
        """Return what its function returned; of an actor None, when it has ended.

        Raises:
            TimeoutError: It has not ended yet; ask again.
            JobStoppedError: It was ended by others.
            Exception: What its function raised.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"job {self.job_id} has not ended within {timeout_s:g} s: {self.note or 'it waits'}")
        outcome = self.run.outcome or Outcome()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def actor(self, timeout_s: float | None = None) -> Any:  # noqa: ANN401 (Ray's own class)
        """Wait until it has a GPU; return Ray's handle of the actor.

        Raises:
            TimeoutError: It has none yet; ask again.
            JobStoppedError: It was ended by others before.
        """
        if not self._started.wait(timeout_s):
            why = self.note or "no bridge has seen it; see that `cotenant engine ray` runs"
            raise TimeoutError(f"job {self.job_id} has no GPU after {timeout_s:g} s: {why}")
        attempt = self.run.attempt
        if attempt is None:
            self.result(0)
            raise JobStoppedError(f"job {self.job_id} has ended")
        return attempt.handle

    def end(self, grace_s: float | None = None) -> None:
        """Let an actor end and give its GPU back, or take a job that waits off the queue.

        Args:
            grace_s: It is killed after so long, from 0; None = it ends when it has done what it was asked before.
        """
        if grace_s is not None:
            self.grace_ms = max(int(grace_s * 1_000), 0)
        self.is_to_end.set()

    def mark_started(self) -> None:
        """Wake who waits for its start."""
        self._started.set()

    def mark_waiting(self) -> None:
        """Let those wait again who ask for its start."""
        self._started.clear()

    def mark_ended(self) -> None:
        """Wake who waits for anything of it."""
        self._ended.set()
        self._started.set()


@dataclass(slots=True)
class JobWatch:
    """Moves the jobs of this process on; one thread asks it to.

    Attributes:
        tables: Reach Ray.
        attempts: Start what may start.
    """

    tables: RayTables
    attempts: Attempts
    _jobs: dict[str, SharedJob] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, job_id: str, tag: str, work: Work, *, now_ms: int) -> SharedJob:
        """Hand a job in; it is known to the bridge when this returns."""
        record = JobRecord(tag=tag, submitted_at_ms=now_ms, beat=1)
        job = SharedJob(job_id, work, record, self.tables)
        self.tables.write(JOB + job_id, encode(record))
        with self._lock:
            self._jobs[job_id] = job
        return job

    def advance(self, now_ms: int) -> None:
        """Look at every job once.

        Raises:
            EngineUnreachableError: Ray does not answer; ask again.
        """
        with self._turn:
            with self._lock:
                jobs = list(self._jobs.values())
            living = self.tables.living_jobs() if any(job.run.attempt is not None for job in jobs) else frozenset()
            for job in jobs:
                self._advance(job, job.job_id in living, now_ms)
            with self._lock:
                self._jobs = {job_id: job for job_id, job in self._jobs.items() if not job.has_ended}

    def _advance(self, job: SharedJob, is_alive: bool, now_ms: int) -> None:
        order = decode(OrderRecord, self.tables.read(ORDER + job.job_id))
        if job.run.stage is _Stage.WAITING:
            self._wait(job, order, now_ms)
        elif job.run.stage is _Stage.RUNNING:
            self._watch(job, order, is_alive, now_ms)
        elif job.run.stage is _Stage.ENDING:
            self._end(job, is_alive, now_ms)
        if job.run.stage is not _Stage.ENDED and now_ms - job.run.told_at_ms >= BEAT_MS:
            self._tell(job, now_ms)

    def leave(self, why: str, *, is_connected: bool) -> None:
        """Give every job up: what waits for one is told why.

        Args:
            why: In words.
            is_connected: Ray still answers, so that processes are ended and GPUs given back at once, not by the bridge.
        """
        with self._lock:
            jobs, self._jobs = list(self._jobs.values()), {}
        # A look that has begun would tell again of a job that is forgotten here. It is not waited for for ever.
        has_turn = self._turn.acquire(timeout=LEAVE_S_MAX)
        is_answering = is_connected and has_turn
        for job in jobs:
            if is_answering and not job.has_ended:
                is_answering = self._give_up(job)
            if job.run.outcome is None:
                job.run.outcome = Outcome(error=JobStoppedError(f"job {job.job_id}: {why}"))
            job.run.stage, job.run.attempt = _Stage.ENDED, None
            job.mark_ended()
        if has_turn:
            self._turn.release()

    def _give_up(self, job: SharedJob) -> bool:
        """End a job's process and forget it; say whether Ray answered, which costs a minute where it does not."""
        try:
            if job.run.attempt is not None:
                job.run.attempt.kill()
            forget_job(self.tables, job.job_id)
        except EngineUnreachableError:
            return False
        return True

    def _wait(self, job: SharedJob, order: OrderRecord, now_ms: int) -> None:
        if not order.note:
            _tell_silence(job, now_ms, "no bridge has looked at it; see that `cotenant engine ray` runs")
        if order.ending or job.is_to_end.is_set():
            stopped = JobStoppedError(f"job {job.job_id} was ended before it had a GPU")
            job.run.outcome = Outcome(error=stopped)
            self._close(job, now_ms)
        elif order.is_released and order.gpu_id:
            ratio = order.slots / SLOTS if order.slots else 1.0
            try:
                job.run.attempt = self.attempts.start(job.job_id, job.work, group_id=order.group_id, gpu_ratio=ratio)
            except Exception as error:
                job.run.outcome = Outcome(error=error)
                self._close(job, now_ms)
                return
            job.run.stage, job.run.since_ms, job.run.is_told = _Stage.RUNNING, now_ms, False
            _change(job, started_at_ms=now_ms)
            self._tell(job, now_ms)
            job.mark_started()

    def _watch(self, job: SharedJob, order: OrderRecord, is_alive: bool, now_ms: int) -> None:
        run, attempt = job.run, job.run.attempt
        assert attempt is not None
        if not run.record.node_hex and (place := attempt.place()) is not None:
            _change(job, node_hex=place[0], gpu_index=place[1])
            self._tell(job, now_ms)
        if not run.record.node_hex:
            _tell_silence(job, now_ms, "Ray has not started its process on its GPU; see `ray status`")
        run.outcome = attempt.outcome()
        if order.ending and not run.killed_at_ms:
            run.killed_at_ms = now_ms + max(order.grace_s, 1) * 1_000
            run.begins_again = order.ending == "requeue"
        if run.outcome is not None or job.is_to_end.is_set():
            attempt.end()
            run.stage, run.since_ms, run.is_told = _Stage.ENDING, now_ms, False
            if run.outcome is not None:
                run.killed_at_ms = min(run.killed_at_ms or now_ms + END_MS_MAX, now_ms + END_MS_MAX)
        elif not is_alive:
            died = JobStoppedError(f"the process of job {job.job_id} has ended before its task", remedy="see its log")
            run.outcome = Outcome(error=died)
            self._close(job, now_ms)
        elif run.killed_at_ms and now_ms >= run.killed_at_ms:
            attempt.kill()
            run.outcome = Outcome(error=JobStoppedError(f"job {job.job_id} was stopped by an operator"))
            run.stage, run.killed_at_ms = _Stage.ENDING, 0

    def _end(self, job: SharedJob, is_alive: bool, now_ms: int) -> None:
        run = job.run
        if not is_alive:
            self._close(job, now_ms)
            return
        if job.grace_ms is not None and not run.killed_at_ms:
            run.killed_at_ms, job.grace_ms = now_ms + job.grace_ms, None
        if not run.killed_at_ms:
            _tell_silence(job, now_ms, "it does what it was asked before its end; end(grace_s=...) kills it")
        elif run.attempt is not None and run.killed_at_ms <= now_ms:
            run.killed_at_ms = 0
            run.attempt.kill()

    def _close(self, job: SharedJob, now_ms: int) -> None:
        """Give its GPU back; a job that was queued again waits from now on."""
        run = job.run
        if run.begins_again:
            job.run = _Run(replace(run.record, node_hex="", gpu_index="", started_at_ms=0))
            job.mark_waiting()
            # The order last: without it the job counts as one that waits.
            self._tell(job, now_ms)
            self.tables.remove(PROGRESS + job.job_id)
            self.tables.remove(ORDER + job.job_id)
            return
        run.stage, run.attempt = _Stage.ENDED, None
        forget_job(self.tables, job.job_id)
        job.mark_ended()

    def _tell(self, job: SharedJob, now_ms: int) -> None:
        _change(job, beat=job.run.record.beat + 1)
        self.tables.write(JOB + job.job_id, encode(job.run.record))
        job.run.told_at_ms = now_ms


def _tell_silence(job: SharedJob, now_ms: int, why: str) -> None:
    """Tell its user once that nothing has happened for long, on the driver's standard error or where its log goes."""
    run = job.run
    run.since_ms = run.since_ms or now_ms
    if not run.is_told and now_ms - run.since_ms >= SILENT_MS_MAX:
        run.is_told = True
        # A sentence, not the name of an event: it stands in the log of the user's own program.
        told = f"job {job.job_id}: for {(now_ms - run.since_ms) // 1_000} s {why}"
        _log.warning(told)


def _change(job: SharedJob, **changes: Any) -> None:  # noqa: ANN401 (fields of different types)
    job.run.record = replace(job.run.record, **changes)
