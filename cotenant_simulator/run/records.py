"""Input and results of a run: settings, results per job, the sums of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler_service.core.queue.tenants import TenantRules

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadCosts:
    """What changes cost; nothing of it is work.

    Attributes:
        launch_ms: From the order to start until the first step.
        restart_ms: The same once more for every further attempt: loading the checkpoint, warming up.
        checkpoint_ms: From the order to stop until the GPUs are free.
        checkpoint_interval_ms: Between two checkpoints of a training; 0 = only when it is stopped.
        prepared_restart_ms: Instead of launch and restart where an attempt was prepared beside the one before it, as on
            the own node of a job that is moved or reshaped; None = every attempt begins from nothing.
        prepare_ms: How long that takes, while the one before trains.
    """

    launch_ms: int = 0
    restart_ms: int = 20_000
    checkpoint_ms: int = 10_000
    checkpoint_interval_ms: int = 600_000
    prepared_restart_ms: int | None = None
    prepare_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """Machines that fail, drawn from a seed.

    Attributes:
        mean_up_ms: Mean time between repair and failure of one node; 0 = they never fail.
        repair_ms: Until it comes back.
    """

    mean_up_ms: int = 0
    repair_ms: int = 1_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything about one run that is not the workload.

    Attributes:
        policy: Name in the registry.
        parameters: Its parameters.
        seed: Of everything that is drawn.
        charges: What changes cost.
        failures: Machines that fail.
        report_interval_ms: Between two progress reports of a job; 0 = two after every change, which lets the engine
            know its speed from then on.
        nodes_per_job_max: Nodes that one job may span; 0 = no limit.
        tenants: Rules for tenants; None = all jobs are one tenant's.
        learns_speeds: Policies see measured step times in place of predicted ones, as on a live cluster. Otherwise the
            errors of predictions stay, which studies of such errors need.
        keeps_history: Keep what pictures need: the sums over time and which job held which GPU when.
    """

    policy: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    charges: OverheadCosts = field(default_factory=OverheadCosts)
    failures: NodeFailures = field(default_factory=NodeFailures)
    report_interval_ms: int = 0
    nodes_per_job_max: int = 0
    tenants: TenantRules | None = None
    learns_speeds: bool = False
    keeps_history: bool = False


@dataclass(slots=True, kw_only=True)
class JobResult:
    """What became of one job; times in ms of the simulated clock, -1 = never.

    Attributes:
        held_ms: With GPUs, launches and checkpoints included.
        trained_ms: Training.
        alone_ms: What the same steps need alone.
        solo_ms: What the whole job needs alone on the fastest device type of the cluster that can run it.
        concurrent_jobs_mean: Jobs in the system on average between submission and end, itself included.
        outcome: finished, failed, or waiting when nothing could happen any more.
    """

    job_id: str
    gpus: int
    submitted_at_ms: int
    solo_ms: float
    first_started_at_ms: int = -1
    finished_at_ms: int = -1
    held_ms: int = 0
    trained_ms: int = 0
    alone_ms: float = 0.0
    attempts: int = 0
    preemptions: int = 0
    migrations: int = 0
    reshapes: int = 0
    out_of_memory: int = 0
    concurrent_jobs_mean: float = 1.0
    outcome: str = "waiting"

    @property
    def is_finished(self) -> bool:
        """It did all its steps."""
        return self.outcome == "finished"

    @property
    def slowdown_ratio(self) -> float:
        """How much longer its training took than alone; 0.2 = 20 %."""
        return self.trained_ms / self.alone_ms - 1.0 if self.alone_ms else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInterval:
    """One attempt on one GPU, for a picture."""

    gpu_id: str
    job_id: str
    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageInterval:
    """Means over one interval of time, for a picture."""

    from_ms: int
    until_ms: int
    held_gpus: float
    utilization: float
    waiting_jobs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run left.

    Attributes:
        jobs: In the order of the trace.
        gpus: Of the cluster.
        began_at_ms: First submission.
        ended_at_ms: Last end of a job.
        gpu_ms_held: GPU time with at least one job.
        gpu_ms_utilized: GPU time times true utilization.
        held_reasons: Jobs by the code of the hold that they met on entering the queue.
        rejected_decisions: Decisions that the plan check dropped.
        first_rejection: What one of them was and why it was dropped; empty = there is none.
        policy_fault: What the policy raised when it was asked, the first time; empty = it never did.
        events: Number of events handed to the engine.
        usage_intervals: Only with history.
        spans: Only with history; bounded.
        spans_dropped: Beyond the bound.
    """

    policy: str
    parameters: Mapping[str, object]
    jobs: Sequence[JobResult]
    gpus: int
    began_at_ms: int
    ended_at_ms: int
    gpu_ms_held: int
    gpu_ms_utilized: float
    held_reasons: Mapping[str, int]
    rejected_decisions: int
    events: int
    first_rejection: str = ""
    policy_fault: str = ""
    usage_intervals: Sequence[UsageInterval] = ()
    spans: Sequence[AttemptInterval] = ()
    spans_dropped: int = 0

    @property
    def unfinished(self) -> int:
        """Jobs that did not finish."""
        return sum(not job.is_finished for job in self.jobs)
