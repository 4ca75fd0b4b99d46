"""What the parts of a run share: the engine, the machines, the clock's appointments, the books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cotenant_simulator.run.accounts import Accounts
from cotenant_simulator.run.attempts import GpuOccupancy
from cotenant_simulator.run.event_queue import EventQueue
from cotenant_simulator.run.records import JobResult, RunSettings
from cotenant_simulator.truth.kinds import GroundTruth
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import Event, TimerFired
from scheduler_service.core.records import ENDED_PHASES
from scheduler_service.core.state import ClusterState


@dataclass(slots=True, kw_only=True)
class SimulationState:
    """One run's state next to the engine's own.

    Attributes:
        tell: Hands a fact to the engine and carries out what follows.
        results: By job id, from submission on.
        job_ms_at_submission: The books' sum when each living job came.
        now_ms: The simulated instant.
        held_reasons: Jobs by the code of the hold that they met on entering the queue.
        ended: Jobs that have ended.
        gpu_ms_by_jobs: GPU time of the attempts that have ended.
        requeued: Jobs that wait again, of whose holds nothing was counted yet.
        known: What the engine knows, at hand: it is asked for several times in every event.
    """

    settings: RunSettings
    truth: GroundTruth
    engine: SchedulerEngine
    occupancy: GpuOccupancy
    accounts: Accounts
    tell: Callable[[Event], None]
    event_queue: EventQueue = field(default_factory=EventQueue)
    results: dict[str, JobResult] = field(default_factory=dict)
    job_ms_at_submission: dict[str, int] = field(default_factory=dict)
    held_reasons: Counter[str] = field(default_factory=Counter)
    now_ms: int = 0
    ended: int = 0
    gpu_ms_by_jobs: int = 0
    requeued: list[str] = field(default_factory=list)
    known: ClusterState = field(init=False)

    def __post_init__(self) -> None:
        """Find what is at hand from now on."""
        self.known = self.engine.state

    def advance(self, now_ms: int) -> None:
        """Let time pass."""
        self.accounts.advance(now_ms)
        self.now_ms = now_ms

    def together(self, event: Event) -> Event:
        """Say of a fact that another end of this instant follows: what ends together is decided upon together."""
        return replace(event, is_followed=True) if self.event_queue.has_end_at(self.now_ms) else event

    def end_appointment(self) -> None:
        """Let nothing stay undecided beyond its instant, and count the holds of what was decided upon."""
        if self.known.put_off is not None:
            if self.event_queue.has_end_at(self.now_ms):
                return
            self.tell(TimerFired(at_ms=self.now_ms))
        while self.requeued:
            self.note_hold(self.requeued.pop(0))

    def note_hold(self, job_id: str) -> None:
        """Count the reason why a job that has just entered the queue stays there."""
        if job_id in self.occupancy.attempts:
            return
        reason = self.known.decisions.reason_of(job_id)
        if reason is not None:
            self.held_reasons[reason.code] += 1

    def note_requeue(self, job_id: str) -> None:
        """After an end that is no success: the job waits again, or the engine has given it up."""
        record = self.known.jobs.get(job_id)
        if record is None or record.phase in ENDED_PHASES:
            self.end(job_id, "failed")
        else:
            self.requeued.append(job_id)

    def end(self, job_id: str, outcome: str) -> None:
        """Close the books of a job."""
        result = self.results[job_id]
        result.outcome, result.finished_at_ms = outcome, self.now_ms
        self.accounts.jobs -= 1
        self.ended += 1
        concurrent_ms = self.accounts.job_ms - self.job_ms_at_submission.pop(job_id)
        stay_ms = self.now_ms - result.submitted_at_ms
        result.concurrent_jobs_mean = concurrent_ms / stay_ms if stay_ms else 1.0
