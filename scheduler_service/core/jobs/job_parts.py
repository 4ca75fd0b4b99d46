"""The parts of a job's record: what happened to it, what was measured of it, where it goes on.

Each is stored among the record's own fields, so that a log does not tell how records are cut (`codec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.job_settings import JobSettings
from scheduler_service.core.copied_record import CopiedRecord, quick_record, slotted_record
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge
from scheduler_service.core.jobs.preparation_records import Preparation
from scheduler_service.core.jobs.rank_watch import RankWatch
from scheduler_service.core.jobs.training_end_records import TrainingEnd
from scheduler_service.core.records import Assignment, MemoryAutopsy, Reason


@slotted_record
class JobEvent:
    """One noteworthy fact in a job's life."""

    at_ms: int
    kind: str
    message: str


@quick_record
class Submission(CopiedRecord):
    """What was handed in with a job and only others look into: its node's agent, and the predictor.

    Attributes:
        launch: What the agent needs to start it.
        graph_sha256: Of its network; empty = it has none.
        settings: What the predictor needs; None = its owner said nothing.
    """

    launch: Mapping[str, object] = field(default_factory=dict)
    graph_sha256: str = ""
    settings: JobSettings | None = None


@quick_record
class JobTimes(CopiedRecord):
    """When a job was submitted, started and ended; 0 = not yet.

    Attributes:
        started_at_ms: When its newest attempt was launched.
        not_before_ms: Until when a pending job waits after a failure.
    """

    submitted_at_ms: int = 0
    first_started_at_ms: int = 0
    started_at_ms: int = 0
    finished_at_ms: int = 0
    not_before_ms: int = 0


@quick_record
class AttemptShape(CopiedRecord):
    """In what shape an attempt runs, what is kept for it on each of its GPUs, and what was expected of it.

    Attributes:
        memory_reserved_bytes: Kept for it.
        memory_surge: What of that it needs now and then, so that others may have it meanwhile; None = it holds all.
        predicted_slowdown_ratio: Expected with the jobs that were there at its start; None = alone, or not known.
    """

    micro_batch_size: int = 0
    accumulation_steps: int = 1
    memory_reserved_bytes: int = 0
    memory_surge: MemorySurge | None = None
    predicted_slowdown_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and in what shape a job that is being stopped goes on; the place is kept for it until then."""

    assignments: tuple[Assignment, ...]
    shape: AttemptShape
    reason: Reason
    trial_with: str = ""
    servers: int | None = None


@quick_record
class AttemptMeasurements(CopiedRecord):
    """What was measured in windows of the present attempt, and what of it was reported; a launch begins with nothing.

    Attributes:
        neighbours_since_ms: When the set of co-located jobs last changed; older windows mix two situations.
        windows_seen: Windows reported.
        was_shared: It had a co-located job at some time.
        observed_slowdown_ratio: Moving average measured while sharing; None = never shared or no solo time known.
        solo_window_ms: Measured alone, without doubtful windows.
        solo_utilization_ratio: Of the newest of these windows.
        solo_windows_step_ms: Step times of the newest few of them.
        attempt_peak_bytes: Largest peak.
        memory_now_bytes: The most that it used since the report before the newest; 0 = it does not say.
        told_peak_bytes: The largest that was reported to the predictor.
        is_outcome_recorded: Its steps were reported to the predictor.
        paused_ms: How long it has stood still, as its node counts it.
        progressed_ran_ms: `JobRecord.ran_ms` at its newest step; -1 = none in this attempt.
        stalled_since_ms: Since when no step came that should have; 0 = it does not stall.
        rank_watch: What its ranks said of their own step times; None = nothing, or it was not asked.
    """

    neighbours_since_ms: int = 0
    windows_seen: int = 0
    was_shared: bool = False
    observed_slowdown_ratio: float | None = None
    solo_window_ms: int = 0
    solo_utilization_ratio: float | None = None
    solo_windows_step_ms: tuple[float, ...] = ()
    attempt_peak_bytes: int = 0
    memory_now_bytes: int = 0
    told_peak_bytes: int = 0
    is_outcome_recorded: bool = False
    paused_ms: int = 0
    progressed_ran_ms: int = -1
    stalled_since_ms: int = 0
    rank_watch: RankWatch | None = None


@dataclass(frozen=True, kw_only=True)
class JobCounts(CopiedRecord):
    """How often what happened to a job.

    Attributes:
        launch_refusals: In a row.
        out_of_memory_alone: Those among `out_of_memory` without a co-located job.
        migrations: Moves to other GPUs that were carried out.
        reshapes: Moves to another number of GPUs or another micro-batch that were carried out.
        trials: Times that it joined another job on trial.
        broken_trials: Those that broke, in either role.
        lost_preparations: Attempts that ended while they were prepared.
        peak_collisions: Stops because its peak of memory met another job's.
        stragglers_replaced: Moves because one of its ranks was too slow.
        lent_pauses: Pauses in which another job was measured on its GPU.
        lent_ms: How long it stood still in these, in sum.
    """

    restarts: int = 0
    launch_refusals: int = 0
    out_of_memory: int = 0
    out_of_memory_alone: int = 0
    preemptions: int = 0
    migrations: int = 0
    reshapes: int = 0
    trials: int = 0
    broken_trials: int = 0
    lost_preparations: int = 0
    peak_collisions: int = 0
    stragglers_replaced: int = 0
    lent_pauses: int = 0
    lent_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class AttemptExit(CopiedRecord):
    """How the newest attempt ended; empty while one lives."""

    exit_class: str = ""
    exit_code: int = 0
    exit_detail: str = ""


@quick_record
class GrantedCheckpoints(CopiedRecord):
    """Which earlier attempts wrote checkpoints that may be resumed, newest first.

    Attributes:
        fences: Theirs.
        node_ids: Where the attempts with these fences ran, or rank 0 of them did; empty = not known.
        parts: All nodes of those of them that were gangs across nodes; empty = it was on one.
    """

    fences: tuple[int, ...] = ()
    node_ids: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobMoves(CopiedRecord):
    """Where a job goes on that is being moved, and what moves to other GPUs have cost it.

    Attributes:
        target: Where it goes on; None = it is not being moved.
        preparation: The attempt that is prepared for that; None = there is none.
        moved_at_ms: When an attempt was told to stop for the present or next move; 0 = for none, or its cost is known.
        move_ms: What a move was measured to cost it, or else others of its key; 0 = never measured.
        prepared_attempt: Highest number given to an attempt that was prepared, whether or not it was launched.
    """

    target: Target | None = None
    preparation: Preparation | None = None
    moved_at_ms: int = 0
    move_ms: int = 0
    prepared_attempt: int = 0

    @property
    def ended(self) -> JobMoves:
        """What remains known when the attempt ends that was to be moved, or was moved to its place."""
        if self.target is None and self.preparation is None and not self.moved_at_ms:
            return self
        return self.changed(target=None, preparation=None, moved_at_ms=0)


@dataclass(frozen=True, kw_only=True)
class ReportedValues(CopiedRecord):
    """What a job's newest reports say, over all attempts, and what followed from them; None = nothing yet.

    Attributes:
        memory_autopsy: How it last ran out of device memory; None = never.
        training_end: When it reaches its target loss; None = it has none, or reported no loss.
        script_steps_total: Optimizer steps of the whole job as its script says them, where its owner stated none; 0 =
            it says none, or has gone beyond what it said.
    """

    loss: float | None = None
    utilization_ratio: float | None = None
    memory_peak_bytes: int = 0
    memory_autopsy: MemoryAutopsy | None = None
    training_end: TrainingEnd | None = None
    script_steps_total: int = 0
