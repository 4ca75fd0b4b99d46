"""Jobs as the engine remembers them: records and their story."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from scheduler_service.core.cluster_view.view import PendingJob, RunningJob
from scheduler_service.core.copied_record import CopiedRecord, quick_record
from scheduler_service.core.jobs.gang_records import GangAttempt
from scheduler_service.core.jobs.job_parts import (
    AttemptExit,
    AttemptMeasurements,
    AttemptShape,
    GrantedCheckpoints,
    JobCounts,
    JobEvent,
    JobMoves,
    JobTimes,
    ReportedValues,
    Submission,
)
from scheduler_service.core.jobs.replica_terms import TRIES_SERVERS
from scheduler_service.core.records import (
    ENDED_PHASES,
    AfterStop,
    Assignment,
    JobPause,
    JobRequest,
    Phase,
    Reason,
    Trial,
)

HISTORY_MAX = 200
"""Entries kept of a job's life while it lives."""
ENDED_HISTORY_MAX = 20
"""Entries kept once it has ended, so that ten thousand ended jobs stay small."""
STEPLESS_PHASES = (Phase.PAUSED, Phase.STOPPING)
"""Phases in which a job holds GPUs and makes no steps."""
HOLDING_PHASES = (Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING)

# A name of the module is found four times as fast as a member of its enum, on every fact.
_STOPPING: Final = Phase.STOPPING


@quick_record
class JobRecord(CopiedRecord):
    """One job as the engine knows it.

    Attributes:
        reason: Why the job is in its phase; for a pending job see `ClusterState.decisions`.
        attempt: Launches so far.
        fence: Fence of the attempt that holds GPUs now; 0 = none, so every report is stale.
        granted: Earlier attempts whose checkpoints may be resumed.
        node_ids: Nodes of the present attempt.
        checkpoint_step: Newest believed checkpoint; -1 = none.
        step_ms: Mean step time of the newest window; 0 = not yet.
        solo_step_ms: Mean step time measured alone; 0 = not yet.
        accrued_at_ms: Until when `attained_gpu_ms` and `ran_ms` were counted.
        ran_ms: How long it held GPUs in sum, pauses left out.
        after_stop: What a stop leads to.
        trial: It shares its GPU on trial, or did so and is watched; None = neither.
        pause: The pause that was ordered, or that lasts; None = there is none.
        gang: The parts of the present attempt; None = it is on one node, or its agent reports of it as a whole.
    """

    request: JobRequest
    submission: Submission = Submission()
    phase: Phase = Phase.PENDING
    reason: Reason = field(default_factory=lambda: Reason(code="SUBMITTED"))
    times: JobTimes = JobTimes()
    attempt: int = 0
    fence: int = 0
    granted: GrantedCheckpoints = GrantedCheckpoints()
    assignments: tuple[Assignment, ...] = ()
    node_ids: tuple[str, ...] = ()
    shape: AttemptShape = AttemptShape()
    steps_done: int = 0
    checkpoint_step: int = -1
    step_ms: float = 0.0
    reported: ReportedValues = ReportedValues()
    solo_step_ms: float = 0.0
    attained_gpu_ms: int = 0
    accrued_at_ms: int = 0
    ran_ms: int = 0
    measured: AttemptMeasurements = AttemptMeasurements()
    counts: JobCounts = JobCounts()
    after_stop: AfterStop = AfterStop.NOTHING
    moves: JobMoves = JobMoves()
    trial: Trial | None = None
    pause: JobPause | None = None
    gang: GangAttempt | None = None
    exit: AttemptExit = AttemptExit()
    history: tuple[JobEvent, ...] = ()

    def counting(self, **more: int) -> JobRecord:
        """Return a copy whose counts of these names have grown."""
        counts = self.counts
        grown = {name: getattr(counts, name) + count for name, count in more.items()}
        return self.changed(counts=counts.changed(**grown))

    def measuring(self, **values: Any) -> JobRecord:  # noqa: ANN401 - of any field of the measurements
        """Return a copy with other measurements of the present attempt."""
        return self.changed(measured=self.measured.changed(**values))

    def reporting(self, **values: Any) -> JobRecord:  # noqa: ANN401 - of any field of the reported values
        """Return a copy of which more was reported."""
        return self.changed(reported=self.reported.changed(**values))

    def moving(self, **values: Any) -> JobRecord:  # noqa: ANN401 - of any field of its moves
        """Return a copy of which more is known of its moves."""
        return self.changed(moves=self.moves.changed(**values))

    def exiting(self, **values: Any) -> JobRecord:  # noqa: ANN401 - of any field of the exit
        """Return a copy of which more is known how its newest attempt ended."""
        return self.changed(exit=self.exit.changed(**values))

    @property
    def job_id(self) -> str:
        """Identity of the job."""
        return self.request.job_id

    @property
    def has_ended(self) -> bool:
        """Nothing will happen to it any more."""
        return self.phase in ENDED_PHASES

    @property
    def holds_gpus(self) -> bool:
        """It occupies its assignments."""
        return self.phase in HOLDING_PHASES

    @property
    def live_node_ids(self) -> tuple[str, ...]:
        """Nodes of the present attempt whose part of it has not ended."""
        ended = self.gang.ended_node_ids if self.gang is not None else ()
        return tuple([node_id for node_id in self.node_ids if node_id not in ended]) if ended else self.node_ids

    @property
    def held_gpus(self) -> int:
        """How many GPUs it occupies."""
        return len(self.assignments) if self.holds_gpus else 0

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """GPUs of the present attempt in rank order."""
        return tuple([assignment.gpu_id for assignment in self.assignments])

    @property
    def is_preparing(self) -> bool:
        """It trains on until its next attempt is prepared, and is stopped then."""
        return self.moves.preparation is not None and not self.moves.preparation.is_handing_over

    @property
    def pace_ms(self) -> float:
        """What a step takes at present, as last measured; 0 = not yet measured, or it makes none any more."""
        steps = self.phase not in STEPLESS_PHASES or self.is_preparing
        return self.step_ms if steps and self.measured.windows_seen else 0.0

    @property
    def closes_gpus(self) -> bool:
        """No other job may start on its GPUs now: it is leaving them, or stands still there."""
        return self.phase is _STOPPING or (self.pause is not None and self.holds_gpus)

    @property
    def occupied_bytes(self) -> dict[str, int]:
        """Memory kept for it on each GPU that it holds or will move to."""
        if self.phase not in HOLDING_PHASES:
            return {}
        kept = dict.fromkeys([part.gpu_id for part in self.assignments], self.shape.memory_reserved_bytes)
        target = self.moves.target
        if target is not None:
            for part in target.assignments:
                kept[part.gpu_id] = max(kept.get(part.gpu_id, 0), target.shape.memory_reserved_bytes)
        return kept

    def bytes_on(self, gpu_id: str) -> int:
        """Memory kept for it on one GPU that it holds or will move to."""
        return self.shape.memory_reserved_bytes if self.moves.target is None else self.occupied_bytes[gpu_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedAttempt:
    """An attempt that a node still holds although the engine has given it up; its GPUs are not free."""

    job_id: str
    attempt: int
    fence: int
    node_id: str
    gpu_ids: tuple[str, ...]
    incarnation_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedDecision:
    """A decision that the plan check dropped: a bug of a policy, kept for its repair."""

    at_ms: int
    policy: str
    job_id: str
    reason: Reason
    detail: str = ""


def with_history(
    job: JobRecord,
    *,
    at_ms: int,
    kind: str,
    message: str,
    **changes: Any,  # noqa: ANN401 - values of any field
) -> JobRecord:
    """Return the job with other values and one more line in its story; the oldest lines leave."""
    limit = ENDED_HISTORY_MAX if changes.get("phase", job.phase) in ENDED_PHASES else HISTORY_MAX
    changes["history"] = (*job.history[1 - limit :], JobEvent(at_ms=at_ms, kind=kind, message=message[:500]))
    return job.with_values(changes)


def pending_view(job: JobRecord) -> PendingJob:
    """Return what a policy may know of a pending job."""
    return PendingJob(
        request=job.request,
        submitted_at_ms=job.times.submitted_at_ms,
        not_before_ms=job.times.not_before_ms,
        steps_done=job.steps_done,
        attained_gpu_ms=job.attained_gpu_ms,
        preemptions=job.counts.preemptions,
        trials=job.counts.trials,
    )


def running_view(job: JobRecord) -> RunningJob:
    """Return what a policy may know of a job that holds GPUs."""
    return RunningJob(
        request=job.request,
        attempt=job.attempt,
        assignments=job.assignments,
        micro_batch_size=job.shape.micro_batch_size,
        accumulation_steps=job.shape.accumulation_steps,
        submitted_at_ms=job.times.submitted_at_ms,
        started_at_ms=job.times.started_at_ms,
        steps_done=job.steps_done,
        attained_gpu_ms=job.attained_gpu_ms,
        preemptions=job.counts.preemptions,
        observed_slowdown_ratio=job.measured.observed_slowdown_ratio,
        is_stopping=job.phase is Phase.STOPPING,
        memory_reserved_bytes=job.shape.memory_reserved_bytes,
        step_ms=job.step_ms if job.measured.windows_seen else 0.0,
        solo_step_ms=job.solo_step_ms,
        moving_to=job.moves.target.assignments if job.moves.target is not None else (),
        neighbours_since_ms=job.measured.neighbours_since_ms,
        accrued_at_ms=job.accrued_at_ms,
        is_on_trial=is_on_trial(job),
        has_checkpoint=job.checkpoint_step >= 0,
        pause=job.pause,
        move_ms=job.moves.move_ms,
        memory_surge=job.shape.memory_surge,
        lent_ms=job.counts.lent_ms,
        lent_pauses=job.counts.lent_pauses,
        is_trying_servers=job.reason is not None and job.reason.code == TRIES_SERVERS,
    )


def is_on_trial(job: JobRecord) -> bool:
    """Say whether a job shares its GPU on trial, which has not passed yet."""
    return job.trial is not None and not job.trial.is_passed


def has_same_occupancy(job: JobRecord, before: JobRecord) -> bool:
    """Say whether a change of a job leaves all GPUs and hosts as they were."""
    same = (
        before.assignments is job.assignments
        and before.moves.target is job.moves.target
        and before.request is job.request
    )
    if not same or before.shape.memory_reserved_bytes != job.shape.memory_reserved_bytes:
        return False
    if before.trial is not job.trial and is_on_trial(before) is not is_on_trial(job):
        return False
    if before.phase is job.phase and before.pause is job.pause:
        return True
    is_holding, was_holding = job.phase in HOLDING_PHASES, before.phase in HOLDING_PHASES
    return was_holding is is_holding and before.closes_gpus is job.closes_gpus
