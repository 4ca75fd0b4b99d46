"""What the engine remembers: jobs, nodes, GPUs, predictions. All frozen; changes are replacements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_facts import DeviceFacts
from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.jobs.replica_terms import NO_REPLICAS, ReplicaTerms
from scheduler_service.core.queue.queue_terms import NO_TERMS, QueueTerms

# Reasons for doubt of what was measured, by the names of the contract.
FOREIGN_LOAD, UNSTEADY, INCOMPLETE_RUN = "foreign_load", "unsteady", "incomplete_run"
DEFAULT_MAX_SLOWDOWN_RATIO = 0.2
"""What a job that states nothing accepts while sharing, live and simulated: steps that take 20 % longer."""


class Share(StrEnum):
    """How far a job consents to share its GPUs."""

    NEVER = "never"
    SAFE = "safe"
    ANY = "any"


class Phase(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED_PHASES = (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)


class AfterStop(StrEnum):
    """What the end of a stopping attempt leads to."""

    NOTHING = "nothing"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    MOVE = "move"
    EXPIRE = "expire"
    RESTART = "restart"
    GANG_ENDED = "gang_ended"


REPORT_INTERVAL_MS = 2_000
"""Between two reports of a node, where the scheduler states no other time."""
PAUSED_MS_MAX = 60_000
"""Longest pause that may be ordered; nodes let a job go on by themselves when its pause is over."""
PAUSING_ENFORCEMENTS = frozenset({"cgroup_freezer", "stop_signal"})
"""What a node that can pause a job says of itself: at least one of these."""
CHECKPOINT_TRANSFERS = "checkpoint_transfers"
"""What a node says of itself that fetches checkpoints from other nodes, and sends its own to them."""
GANG_TRANSFERS = "gang_checkpoint_transfers"
"""What a node says of itself that does so for its part of a gang across nodes too; it shares no storage with others."""
PREPARED_STARTS = "prepared_starts"
"""What a node says of itself that can start an attempt early, before the present one has ended."""
PREPARED_PARTS = "prepared_starts_across_nodes"
"""The same of a part of a gang across nodes."""


class Level(StrEnum):
    """What a prediction is based on, best first."""

    OBSERVED = "observed"
    SOLO_KNOWN = "solo_known"
    GRAPH = "graph"
    FALLBACK = "fallback"


@slotted_record
class Reason:
    """Why something is as it is, as data.

    Attributes:
        code: UPPER_SNAKE_CASE, stable.
        numbers: Quantities behind the code; the unit is last in the key.
        job_ids: Jobs that the reason is about.
        gpu_ids: GPUs that the reason is about.
    """

    code: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    job_ids: tuple[str, ...] = ()
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPause:
    """A pause of the present attempt, from the order until the node says that the job goes on.

    Attributes:
        reason: Why it was ordered.
        ordered_at_ms: When it was ordered.
        paused_at_ms: Since when the job stands still; 0 = the node has not said so yet.
        paused_ms_max: How long it may stand still before its node lets it go on, 1 to `PAUSED_MS_MAX`.
        is_resuming: The order to go on was given.
    """

    reason: Reason
    ordered_at_ms: int
    paused_at_ms: int = 0
    paused_ms_max: int = PAUSED_MS_MAX
    is_resuming: bool = False

    @property
    def until_ms(self) -> int:
        """When the job goes on at the latest, as far as is known."""
        return (self.paused_at_ms or self.ordered_at_ms) + self.paused_ms_max


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDemand:
    """What one task (worker or parameter server) occupies."""

    cpu_cores: float = 0.0
    host_memory_bytes: int = 0
    gpus: int = 0
    network_bytes_per_s: float = 0.0


class TrialStage(StrEnum):
    """How far a trial has come: of a job that was never measured two stages come before the one that is judged."""

    STARTING_UP = "starting_up"
    MEASURING = "measuring"
    SHARING = "sharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One side of two jobs that share a GPU on trial.

    Attributes:
        other_job_id: The other job, which has the other side.
        is_incoming: The job came last, and leaves if the trial breaks.
        since_ms: When the incoming job was launched, or was measured.
        until_ms: When what was measured decides.
        ratios: Slowdowns in its newest sound windows, oldest first.
        is_passed: Both consents were kept; it is watched from then on.
        stage: Whether the incoming job is still to be measured alone (`first_measurements`).
    """

    other_job_id: str
    is_incoming: bool
    since_ms: int
    until_ms: int
    ratios: tuple[float, ...] = ()
    is_passed: bool = False
    stage: TrialStage = TrialStage.SHARING

    @property
    def is_sharing(self) -> bool:
        """Both jobs were measured alone, so that what each loses is told and judged."""
        return self.stage is TrialStage.SHARING


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a user asked for, as far as a policy may know it.

    Attributes:
        job_id: Unique in the cluster's life.
        key: sha256 over graph and settings; equal jobs share predictions. Empty: nothing can be predicted.
        gpus: GPUs at the start, at least 1.
        allowed_gpus: Counts an elastic policy may choose from; (gpus,) when rigid.
        global_batch_size: Samples per optimizer step over all GPUs.
        steps_total: Optimizer steps of the whole job; of one with a target loss, as many as are foreseen, else stated.
        target_loss: Training is over when the loss has come down to this; 0 = its steps end it.
        max_slowdown_ratio: Slowdown accepted while sharing; 0.2 = 20 % slower.
        memory_request_bytes: Device memory the user reserved; 0 = use the prediction's upper bound.
        memory_floor_bytes: Raised after an out-of-memory end; a placement must offer at least this.
        no_trial: It never shares a GPU on trial, nor is another job tried next to it.
        no_preparation: When it is moved its next attempt is not started early.
        releases_memory: It gives device memory back between its peaks, so that others may use it meanwhile.
        takes_whole_batch: Its program cuts no batch, so it is never started in passes.
        terms: What it asks of the queue.
        replicas: What it asks of the group of its processes.
    """

    job_id: str
    key: str = ""
    tenant: str = ""
    name: str = ""
    gpus: int = 1
    allowed_gpus: tuple[int, ...] = ()
    global_batch_size: int = 1
    steps_total: int = 0
    target_loss: float = 0.0
    share: Share = Share.SAFE
    max_slowdown_ratio: float = DEFAULT_MAX_SLOWDOWN_RATIO
    cpu_cores: float = 0.0
    host_memory_bytes: int = 0
    memory_request_bytes: int = 0
    memory_floor_bytes: int = 0
    migration_cost_ms: int = 0
    restart_limit: int = 5
    no_trial: bool = False
    no_preparation: bool = False
    releases_memory: bool = False
    takes_whole_batch: bool = False
    worker_demand: TaskDemand | None = None
    server_demand: TaskDemand | None = None
    terms: QueueTerms = NO_TERMS
    replicas: ReplicaTerms = NO_REPLICAS

    def __post_init__(self) -> None:
        """Keep one record of asking for nothing: a look that finds it ends there."""
        if self.terms is not NO_TERMS and self.terms == NO_TERMS:
            object.__setattr__(self, "terms", NO_TERMS)


@slotted_record
class Assignment:
    """A share of one GPU given to one rank."""

    gpu_id: str
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a node.

    Attributes:
        calibration: What its node measured of it; None = nothing.
        not_calibrated: Why, in words.
        sharing: How jobs share it, as its node says.
        facts: What its driver says of it; None = too little.
    """

    gpu_id: str
    device: str
    memory_bytes: int
    healthy: bool = True
    index: int = 0
    calibration: DeviceCalibration | None = None
    not_calibrated: str = ""
    sharing: DeviceSharing = DeviceSharing.UNSTATED
    facts: DeviceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. `connected` is the engine's own knowledge, not the agent's claim.

    Attributes:
        machine_id: Hash that distinguishes machines; empty = not stated.
        installation_id: Of the agent's state directory; empty = not stated.
        is_cordoned: An operator lets nothing new start there. The engine's own knowledge, as the next one.
        is_draining: What ran there was told to go on elsewhere.
        rendezvous_address: Where other nodes reach ranks that run there; empty = it spans no jobs with them.
        storage_id: Of the shared storage of its checkpoints; empty = it has none.
    """

    node_id: str
    rack_id: str = ""
    cpu_cores: float = 0.0
    host_memory_bytes: int = 0
    schedulable: bool = True
    connected: bool = True
    gpus: tuple[Gpu, ...] = ()
    enforcements: tuple[str, ...] = ()
    agent_version: str = ""
    boot_id: str = ""
    machine_id: str = ""
    installation_id: str = ""
    is_cordoned: bool = False
    is_draining: bool = False
    rendezvous_address: str = ""
    storage_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTriple:
    """OJPP's memory states of one worker as fractions of the device (paper 3.2)."""

    gamma_ratio: float
    delta_ratio: float
    high_state_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAutopsy:
    """How a job last ran out of device memory, on the first of its GPUs, and what its next attempts keep to.

    Attributes:
        predicted_bytes: For that micro-batch; 0 = nothing was predicted, as for the next one.
        peak_bytes: The largest use that was seen; 0 = none was.
        available_bytes: What others left to it.
        co_located_ids: Jobs on the same GPUs.
        detail: The agent's words.
        micro_batch_size_max: Which it is given from now on at most; 0 = as the policy says.
        halvings: How often that was halved.
    """

    attempt: int
    gpu_id: str
    gpu_memory_bytes: int
    micro_batch_size: int
    predicted_bytes: int = 0
    predicted_upper_99_bytes: int = 0
    reserved_bytes: int = 0
    peak_bytes: int = 0
    available_bytes: int = 0
    co_located_ids: tuple[str, ...] = ()
    detail: str = ""
    micro_batch_size_max: int = 0
    halvings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Predicted device memory at one micro-batch; placement uses the bound."""

    memory_bytes: int
    memory_bytes_upper_99: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRange:
    """Predicted device memory of a job alone: the interval's lower end and the bound of 99 %."""

    lower_bytes: int
    upper_99_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPrediction:
    """What is predicted of one job key on one device type.

    Attributes:
        memory: By micro-batch (samples per GPU).
        step_ms: By (gpus, micro_batch_size).
        task_step_ms: By (workers, servers), for jobs with parameter servers.
        range_not_calibrated: No measurement checked how often its ranges and bounds hold.
        unusual_features: Why it is not in domain, in the predictor's words.
        measured_micro_batch_sizes: At which jobs of this key were measured alone on one such device.
        measured_gpus: Numbers of such devices on which jobs of this key were measured alone, ascending.
        measured_tasks: The same of jobs with parameter servers: (workers, servers).
    """

    key: str
    device: str
    utilization_ratio: float
    sm_activity_ratio: float | None = None
    memory: Mapping[int, MemoryPoint] = field(default_factory=dict)
    step_ms: Mapping[tuple[int, int], float] = field(default_factory=dict)
    task_step_ms: Mapping[tuple[int, int], float] = field(default_factory=dict)
    memory_triple: MemoryTriple | None = None
    level: Level = Level.GRAPH
    in_domain: bool = True
    model_version: str = ""
    prediction_id: str = ""
    utilization_lower_ratio: float = 0.0
    utilization_upper_ratio: float = 1.0
    step_ms_lower: float = 0.0
    step_ms_upper: float = 0.0
    range_not_calibrated: bool = False
    unusual_features: tuple[str, ...] = ()
    measured_micro_batch_sizes: tuple[int, ...] = ()
    measured_gpus: tuple[int, ...] = ()
    measured_tasks: tuple[tuple[int, int], ...] = ()


@slotted_record
class PairPrediction:
    """How much `other_key` slows `victim_key` down on one device type; ratio 0.2 = 20 % slower.

    Attributes:
        micro_batch_size: Of the victim; 0 = any.
        other_micro_batch_size: Of the other job; 0 = any.
        times_measured: How often the pair was measured, here or elsewhere; 0 = never.
        sharing: How the jobs would share the device; unstated = it was not asked for one way.
    """

    victim_key: str
    other_key: str
    device: str
    slowdown_ratio: float
    upper_ratio: float
    micro_batch_size: int = 0
    level: Level = Level.GRAPH
    in_domain: bool = True
    model_version: str = ""
    times_measured: int = 0
    other_micro_batch_size: int = 0
    sharing: DeviceSharing = DeviceSharing.UNSTATED
