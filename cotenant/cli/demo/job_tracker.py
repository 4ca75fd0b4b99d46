"""What the demo sees of the jobs: their newest state and what was measured while two shared a device."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.client import SchedulerClient
from cotenant.client_errors import CotenantError
from cotenant.job_watch import WatchKind, watch_jobs
from cotenant.v1 import scheduling_pb2

ENDED = frozenset(
    {scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED}
)


ALONE = ""


@dataclass(slots=True)
class Window:
    """Steps of one job while its co-located jobs stayed the same: one other job, or none.

    Attributes:
        steps: Steps counted.
        step_ms_sum: Sum of their times.
        utilization_sum: Sum of the utilization at every step.
    """

    steps: int = 0
    step_ms_sum: float = 0.0
    utilization_sum: float = 0.0

    @property
    def step_ms(self) -> float:
        """Mean step time of the window; 0 = no steps."""
        return self.step_ms_sum / self.steps if self.steps else 0.0

    @property
    def utilization_ratio(self) -> float:
        """Mean utilization of the window; 0 = no steps."""
        return self.utilization_sum / self.steps if self.steps else 0.0

    def joined(self, other: Window) -> Window:
        """Returns both windows as one."""
        return Window(
            steps=self.steps + other.steps,
            step_ms_sum=self.step_ms_sum + other.step_ms_sum,
            utilization_sum=self.utilization_sum + other.utilization_sum,
        )


@dataclass(slots=True)
class JobTracker:
    """Follows the jobs of one cluster; safe to read while `follow` runs in a thread.

    Attributes:
        jobs: Newest state by job id.
        windows: (job id, id of its one co-located job or ALONE) -> what was measured.
        busy_ms: Job id -> sum of the times of all its steps.
        violations: What must not happen and did: steps that went back, attempts that went back.
        stepping: Job id and attempt of whatever has made steps. What a co-located job does before its first one is no
            training, and no slowdown is predicted of it; agents count it as little.
        together: Job id -> who else was stepping beside it at its last report. A window counts where that is still so,
            else part of it lies before the other's first step or after its end; the scheduler learns from no other.
        connected: Whether the watch stands.
        failure: Why following ended early; empty = it did not.
    """

    jobs: dict[str, scheduling_pb2.Job] = field(default_factory=dict)
    windows: dict[tuple[str, str], Window] = field(default_factory=dict)
    busy_ms: dict[str, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    stepping: set[tuple[str, int]] = field(default_factory=set)
    together: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    connected: bool = False
    failure: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, client: SchedulerClient, stop: threading.Event) -> None:
        """Watches until `stop` is set; a lost scheduler is waited for."""
        try:
            for event in watch_jobs(client, patience_ms=120_000, stop=stop):
                with self.lock:
                    self.connected = event.kind is not WatchKind.DISCONNECTED
                    if event.job is not None:
                        self._learn(event.job)
        except CotenantError as error:
            self.failure = error.message

    def snapshot(self) -> Mapping[str, scheduling_pb2.Job]:
        """Returns the newest state of every job by id."""
        with self.lock:
            return dict(self.jobs)

    def _learn(self, job: scheduling_pb2.Job) -> None:
        before = self.jobs.get(job.job_id)
        self.jobs[job.job_id] = job
        if before is None:
            return
        name = job.spec.name
        if job.attempt < before.attempt:
            self.violations.append(f"{name}: attempt went from {before.attempt} back to {job.attempt}")
        if job.attempt == before.attempt and job.steps_done < before.steps_done:
            self.violations.append(f"{name}: steps went from {before.steps_done} back to {job.steps_done}")
        self._measure(before, job)

    def _measure(self, before: scheduling_pb2.Job, job: scheduling_pb2.Job) -> None:
        steps = job.steps_done - before.steps_done
        if job.attempt != before.attempt:
            self.together.pop(job.job_id, None)
        elif steps > 0 and job.step_ms > 0:
            self.stepping.add((job.job_id, job.attempt))
            self.busy_ms[job.job_id] = self.busy_ms.get(job.job_id, 0.0) + steps * job.step_ms
            others = self._stepping_beside(job)
            if others is not None and len(others) <= 1 and job.phase not in ENDED:
                self._count(steps, job, others[0][0] if others else ALONE)

    def _stepping_beside(self, job: scheduling_pb2.Job) -> tuple[tuple[str, int], ...] | None:
        """Who has stepped beside a job since its last report; None = that changed, or one of them does not step yet."""
        ids = [other.job_id for other in job.co_located_jobs]
        present = tuple((other, self.jobs[other].attempt) for other in ids if other in self.jobs)
        last = self.together.pop(job.job_id, None)
        if len(present) < len(ids) or not self.stepping.issuperset(present):
            return None
        self.together[job.job_id] = present
        return present if last == present else None

    def _count(self, steps: int, job: scheduling_pb2.Job, other: str) -> None:
        window = self.windows.setdefault((job.job_id, other), Window())
        window.steps += steps
        window.step_ms_sum += steps * job.step_ms
        window.utilization_sum += steps * job.utilization_ratio


def progress_ratio(jobs: Mapping[str, scheduling_pb2.Job]) -> float:
    """Returns the part of all steps that is done, 0 to 1."""
    total = sum(job.spec.steps_total for job in jobs.values())
    return sum(job.steps_done for job in jobs.values()) / total if total else 0.0


def sharing_pairs(jobs: Mapping[str, scheduling_pb2.Job]) -> set[frozenset[str]]:
    """Returns the pairs of jobs that run on one device now."""
    return {
        frozenset({job.job_id, other.job_id})
        for job in jobs.values()
        if job.phase == scheduling_pb2.JOB_PHASE_RUNNING
        for other in job.co_located_jobs
    }
