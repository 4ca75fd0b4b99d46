"""The facts that travel through the agent; plain data, no protobuf, no files."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.device_facts import DeviceFacts
from cotenant.job_settings import JobSettings

_NAMED_CHARACTERS = 8  # of an incarnation's id in names of directories: paths of sockets are short
STEPS_LIMIT = 1 << 53  # of steps and epochs that a job may claim: what is larger fits into no message


class AttemptState(enum.Enum):
    """Where an attempt is in its life."""

    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AttemptKey:
    """Identity of one launch.

    Attributes:
        incarnation_id: of the cluster under which the fence was given; empty = an older scheduler gave it.
    """

    job_id: str
    attempt: int
    fence: int
    incarnation_id: str = ""

    @property
    def directory_name(self) -> str:
        """Name of everything on disk that belongs to the attempt."""
        of_cluster = f".{self.incarnation_id[:_NAMED_CHARACTERS]}" if self.incarnation_id else ""
        return f"{self.job_id}.{self.attempt}{of_cluster}"

    def is_meant_by(self, order: AttemptKey) -> bool:
        """Whether an order is about this attempt; one that an older agent started does not know its incarnation."""
        mine, ordered = (self.job_id, self.attempt, self.fence), (order.job_id, order.attempt, order.fence)
        return mine == ordered and self.incarnation_id in ("", order.incarnation_id)

    def fields(self) -> dict[str, object]:
        """The key as fields of a line of the log."""
        return {"job_id": self.job_id, "attempt": self.attempt, "fence": self.fence}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedCheckpoint:
    """An earlier attempt of the job whose checkpoint may be resumed; see `AttemptKey` for the incarnation.

    Attributes:
        node_id: Where it ran, or its rank 0 did; empty = not known.
        part_node_ids: Of a gang across nodes, all of them.
    """

    incarnation_id: str
    fence: int
    node_id: str = ""
    part_node_ids: tuple[str, ...] = ()

    @property
    def source_ids(self) -> tuple[str, ...]:
        """The nodes that may have it, or a part of it, the likeliest first."""
        return tuple(dict.fromkeys(filter(None, (self.node_id, *self.part_node_ids))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """A place in the history of a cluster, as its scheduler said it; see the contract's message of that name."""

    incarnation_id: str = ""
    generation: int = 0
    start_id: str = ""
    sequence: int = 0
    seal: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """The part of a gang across nodes that this node runs; see the contract's message of that name.

    Attributes:
        world_size: its ranks on all nodes, without parameter servers.
    """

    world_size: int
    group_rank: int
    nodes: int
    master_address: str
    master_port: int = 0
    resumed: GrantedCheckpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """The parameter servers of an attempt.

    Attributes:
        count: how many, at least 1.
        command: empty = that of the ranks.
        blocks: parameters of each block of the model, by its name; empty = not known.
        part: the numbers of those on this node, of a gang across nodes; None = all are here.
    """

    count: int
    command: tuple[str, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)
    part: range | None = None

    @property
    def here(self) -> range:
        """The numbers of those on this node."""
        return range(self.count) if self.part is None else self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What the scheduler wants started.

    Attributes:
        memory_limit_bytes: device memory that the attempt may use; 0 = no limit of its own.
        memory_held_bytes: what of that it holds all the time, others using the rest meanwhile; 0 = all of it.
        yields_memory: where its devices run short of memory it ends, whichever attempt is over its limit.
        co_located_limits: device memory of other attempts on its devices, as it is reserved by now.
        granted: whose checkpoints may be resumed, newest first.
        steps_done: in the newest checkpoint that the scheduler heard of; 0 = in none.
        checkpoint_ms: how long the job needs for a checkpoint; 0 = unknown.
        host_memory_bytes: limit on host memory; 0 = none.
        cpu_cores: limit on CPU cores; 0 = none.
        measured_job: what may be recorded of it where its run is measured; None = nothing.
        tenant: whose job it is, as the scheduler says; empty = unknown.
        array_index: its index as a task of an array; None = it is none.
        rank: of the first of its devices.
        has_ranks: one process per device, instead of one that sees them all.
        collective_timeout_ms: how long ranks wait for each other; 0 = as the frameworks do.
        gang_part: which part of a gang across nodes it is; None = all of its ranks are here.
        batches_per_step: that its script itself takes for one optimizer step; 0 = not known.
        target_loss: at which training may end; 0 = it ends by its steps.
        servers: processes that hold its parameters; None = it has none.
        watches_ranks: what its ranks say of their own time for a step is told to the scheduler.
        notes: what its owner should read in its log, a line each.
    """

    key: AttemptKey
    command: tuple[str, ...]
    gpu_ids: tuple[str, ...] = ()
    rank: int = 0
    working_directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    global_batch_size: int = 0
    micro_batch_size: int = 0
    accumulation_steps: int = 1
    granted: tuple[GrantedCheckpoint, ...] = ()
    steps_done: int = 0
    memory_limit_bytes: int = 0
    memory_held_bytes: int = 0
    yields_memory: bool = False
    checkpoint_ms: int = 0
    host_memory_bytes: int = 0
    cpu_cores: float = 0.0
    progress_regex: str = ""
    steps_total: int = 0
    batches_per_step: int = 0
    co_located_limits: Mapping[AttemptKey, int] = field(default_factory=dict)
    measured_job: MeasuredJob | None = None
    tenant: str = ""
    array_index: int | None = None
    has_ranks: bool = False
    collective_timeout_ms: int = 0
    gang_part: GangPart | None = None
    target_loss: float = 0.0
    servers: ServerGroup | None = None
    watches_ranks: bool = False
    notes: tuple[str, ...] = ()

    @property
    def chooses_port(self) -> bool:
        """Whether its ranks meet on this node."""
        return self.gang_part is None or self.gang_part.group_rank == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDescription:
    """One device as the scheduler sees it; `fault` states why it is not healthy, `driver` what measured it."""

    gpu_id: str
    device: str
    memory_bytes: int
    index: int
    healthy: bool = True
    fault: str = ""
    driver: str = "none"
    facts: DeviceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What one device showed since the last reading; None = not reported by the driver.

    `foreign_ratio` is the use of the device by processes of none of this node's jobs.
    """

    gpu_id: str
    healthy: bool = True
    fault: str = ""
    memory_used_bytes: int | None = None
    utilization_ratio: float | None = None
    sm_activity_ratio: float | None = None
    power_watts: float | None = None
    foreign_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcesses:
    """Where to look for one attempt: its devices and the processes of its tree, leader first.

    Attributes:
        rank_pids: of a gang the processes of each rank, in the order of its devices; empty = all are on all devices.
        interpreter: the program that runs as the agent's own user, by its path; empty = as another one.
    """

    gpu_ids: tuple[str, ...]
    pids: tuple[int, ...]
    rank_pids: tuple[tuple[int, ...], ...] = ()
    interpreter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """What one attempt used since the last reading; None = unknown, which is not zero.

    `memory_bytes` is that of the device of which it takes most, since limits and reservations are those of one device.
    """

    memory_bytes: int | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReading:
    """All devices and all attempts at one instant."""

    gpus: tuple[GpuReading, ...]
    jobs: Mapping[AttemptKey, JobUsage]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBinding:
    """How a process is tied to its devices: environment, and CPU cores for stand-in devices (None = all)."""

    environment: Mapping[str, str]
    cpu_cores: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitFacts:
    """What is known about an ended attempt before it is classified.

    Attributes:
        return_code: as of a child process (negative = signal); None = not observed.
        cause: why the shim or the agent ended it; empty = it ended by itself.
        oom_kills: processes that the kernel killed in its control group for want of host memory.
        checkpoint_is_new: an accepted manifest is newer than the stop (or exists, without a stop).
        reported_failure: what the training script itself declared, e.g. gpu_oom.
        failed_rank: which rank of a gang ended first without success; the code and the log are its own; None = no gang.
    """

    return_code: int | None
    cause: str = ""
    oom_kills: int = 0
    log_tail: str = ""
    checkpoint_is_new: bool = False
    reported_failure: str = ""
    failed_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The end of an attempt as it is reported."""

    key: AttemptKey
    exit_class: str
    exit_code: int
    steps_done: int
    checkpoint_step: int
    memory_peak_bytes: int
    memory_available_bytes: int
    log_tail: str
    detail: str
    failed_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPause:
    """What the shim has written down about the pauses of an attempt.

    Attributes:
        changes: how often it has begun and ceased to stand still.
        failure: why the newest order could not be carried out; empty = it was.
    """

    is_paused: bool = False
    paused_ms: int = 0
    changes: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStates:
    """Device memory of a job that releases memory: `low_bytes` always, `extra_bytes` more a share of the time."""

    low_bytes: int
    extra_bytes: int
    high_state_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptObservation:
    """What was measured of a running attempt in one window; None = unknown.

    Attributes:
        allocated_bytes: the most that the job says it had allocated, with what its processes hold besides.
        quality_flags: reasons for doubt of the window.
        paused_ms: how long the attempt has stood still by order, in sum; no part of the window.
        are_ranks_done: of a part of a gang: all have ended with 0, and its parameter servers are left.
        steps_total: of the whole job, as its script says them; 0 = it says none.
    """

    key: AttemptKey
    steps_done: int
    epoch: int
    loss: float | None
    window_steps: int
    window_ms: int
    utilization_ratio: float | None
    memory_bytes: int | None
    memory_peak_bytes: int
    checkpoint_step: int
    quality_flags: tuple[str, ...] = ()
    paused_ms: int = 0
    memory_states: MemoryStates | None = None
    allocated_bytes: int | None = None
    are_ranks_done: bool = False
    steps_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """What may be recorded of a job whose run is measured: no name, no user, no path, no command.

    Attributes:
        micro_batch_size: samples per micro-step; 0 = the batch.
    """

    graph_sha256: str
    settings: JobSettings
    micro_batch_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingAttempt:
    """What co-located attempts need to know of a running attempt.

    Attributes:
        job: None when it must not be recorded.
        under_mps: a server of MPS stands between it and its device.
    """

    key: AttemptKey
    gpu_ids: tuple[str, ...]
    job: MeasuredJob | None
    pause_changes: int = 0
    under_mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementWindow:
    """Steps of one job, alone or with the same co-located jobs throughout; see the contract's message of that name."""

    window_id: str
    campaign: str
    device: str
    job: MeasuredJob
    others: tuple[MeasuredJob, ...]
    steps: int
    window_ms: int
    utilization_ratio: float | None
    sm_activity_ratio: float | None
    memory_peak_bytes: int | None
    power_watts: float | None
    quality_flags: tuple[str, ...]
    under_mps: bool = False
