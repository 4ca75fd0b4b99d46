"""Orders, in the imperative: everything the engine wants done. Each may safely be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_facts import DeviceFacts
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.records import Assignment, PairPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPrediction(Command):
    """Ask the predictor about one key on one device type; the answer is an event.

    Attributes:
        micro_batch_sizes: Samples per pass that a policy may choose.
        gpus: Numbers of GPUs that the living jobs of the key may have.
        calibration: What was measured of a device of this type; None = nothing.
        facts: What the driver of such a device says of it; None = too little.
    """

    key: str
    device: str
    device_memory_bytes: int
    graph_sha256: str
    settings: JobSettings | None
    micro_batch_sizes: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    calibration: DeviceCalibration | None = None
    facts: DeviceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMember:
    """A job key in a question about pairs, with what was measured of it alone.

    Attributes:
        micro_batch_size: Samples per pass that it is asked about with; 0 = all of a step at once.
    """

    key: str
    graph_sha256: str
    settings: JobSettings | None
    solo_step_ms: float | None = None
    utilization_ratio: float | None = None
    memory_bytes: int | None = None
    micro_batch_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPairPredictions(Command):
    """Ask the predictor how these keys slow each other down on one device type.

    Attributes:
        members: All keys in question.
        new_keys: Only pairs with one of these are wanted; the others are known already.
        observed: (victim key, other key, slowdown) of pairs that were measured here; they tell of the wanted ones too.
        device_memory_bytes: Tells device types of one short name apart; 0 = not known.
        doubted: (victim key, other key) of those that were measured while others used the device.
        calibration: As in `RequestPrediction`, as are the `facts`.
        sharing: How the devices of this type are shared, where all say the same.
    """

    device: str
    members: tuple[PairMember, ...]
    new_keys: tuple[str, ...] = ()
    observed: tuple[tuple[str, str, float], ...] = ()
    device_memory_bytes: int = 0
    doubted: frozenset[tuple[str, str]] = frozenset()
    calibration: DeviceCalibration | None = None
    sharing: DeviceSharing = DeviceSharing.UNSTATED
    facts: DeviceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPairs(Command):
    """Ask the predictor again about known pairs of one device type; the answer is what has changed.

    Attributes:
        members: All keys in question.
        observed: As in `RequestPairPredictions`.
        doubted: As there.
        known: What was answered before.
        device_memory_bytes: As in `RequestPairPredictions`.
        calibration: As in `RequestPrediction`, as are the `facts`.
        sharing: As in `RequestPairPredictions`.
    """

    device: str
    members: tuple[PairMember, ...]
    observed: tuple[tuple[str, str, float], ...] = ()
    doubted: frozenset[tuple[str, str]] = frozenset()
    known: tuple[PairPrediction, ...] = ()
    device_memory_bytes: int = 0
    calibration: DeviceCalibration | None = None
    sharing: DeviceSharing = DeviceSharing.UNSTATED
    facts: DeviceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpeedFit(Command):
    """Ask the predictor for a curve through step times that were measured at several numbers of GPUs.

    Attributes:
        global_batch_size: Samples of one step over all GPUs.
        samples: (GPUs, step time in ms).
        counts: Numbers of GPUs that the curve is wanted at.
    """

    key: str
    device: str
    global_batch_size: int
    samples: tuple[tuple[int, float], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTaskSpeedFit(Command):
    """The same for jobs with parameter servers.

    Attributes:
        global_batch_size: Samples of one step over all workers.
        samples: (workers, servers, step time in ms).
        asked: Numbers of workers and servers that the curve is wanted at.
    """

    key: str
    device: str
    global_batch_size: int
    samples: tuple[tuple[int, int, float], ...]
    asked: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLossFit(Command):
    """Ask the predictor when a job reaches its target loss.

    Attributes:
        losses: (steps done, loss), ascending.
        epoch_steps: Steps whose losses count as their mean; at least 1.
    """

    job_id: str
    target_loss: float
    losses: tuple[tuple[int, float], ...]
    epoch_steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoLocatedLimit:
    """What is reserved by now for another attempt on the same devices."""

    job_id: str
    attempt: int
    fence: int
    memory_limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """Which part of a gang across nodes a node runs.

    Attributes:
        world_size: Ranks on all nodes.
        group_rank: Number of the node in the order of its ranks.
        nodes: How many there are.
        master_address: Of the node of rank 0, as nodes reach each other.
        master_port: Where the ranks meet; 0 = this node chooses it.
        resumed_fence: Of the checkpoint that the first node goes on from; 0 = none, or this is the first node.
        resumed_node_id: The first node, which has that checkpoint; empty where there is none.
        first_server: Number of the first parameter server that is on this node.
        servers: How many are.
    """

    world_size: int
    group_rank: int
    nodes: int
    master_address: str
    master_port: int
    resumed_fence: int = 0
    resumed_node_id: str = ""
    first_server: int = 0
    servers: int = 0


@slotted_record
class LaunchJob(Command):
    """Start one attempt on one node, or (with a `gang_part`) the part of it that this node runs.

    Attributes:
        memory_held_bytes: What of its memory it holds all the time, others using the rest meanwhile; 0 = all of it.
        yields_memory: It came last, on trial: where memory runs short it ends, whichever job is over its limit.
        granted_node_ids: As in the job's record, as are the `granted_parts`.
    """

    node_id: str
    job_id: str
    attempt: int
    fence: int
    assignments: tuple[Assignment, ...]
    micro_batch_size: int
    accumulation_steps: int
    granted_fences: tuple[int, ...]
    memory_limit_bytes: int
    steps_done: int
    launch: Mapping[str, object] = field(default_factory=dict)
    settings: JobSettings | None = None
    co_located_limits: tuple[CoLocatedLimit, ...] = ()
    gang_part: GangPart | None = None
    memory_held_bytes: int = 0
    yields_memory: bool = False
    servers: int = 0
    granted_node_ids: tuple[str, ...] = ()
    granted_parts: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareJob(Command):
    """Start the process of a later launch early, as far as it needs neither a device nor a checkpoint."""

    launch: LaunchJob


@slotted_record
class StopJob(Command):
    """End one attempt, with a checkpoint where asked.

    Attributes:
        incarnation_id: As the node stated it of an attempt that is not known here; empty = that of the fence.
        grace_ms_max: How long it may take at most; 0 = as long as the job's checkpoints need.
    """

    node_id: str
    job_id: str
    attempt: int
    fence: int
    checkpoint: bool
    cause: str
    incarnation_id: str = ""
    grace_ms_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob(Command):
    """Let one attempt stand still, for at most `paused_ms_max`; it keeps its memory."""

    node_id: str
    job_id: str
    attempt: int
    fence: int
    cause: str
    paused_ms_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob(Command):
    """Let a paused attempt go on."""

    node_id: str
    job_id: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOutcome(Command):
    """Tell the predictor what a job really did, unless its owner or a node of `node_ids` keeps that private."""

    prediction_id: str
    job_id: str = ""
    node_ids: tuple[str, ...] = ()
    utilization_ratio: float | None = None
    memory_peak_bytes: int | None = None
    step_ms_mean: float | None = None
    window_ms: int = 0
    quality_flags: tuple[str, ...] = ()


@slotted_record
class WakeAt(Command):
    """Hand in a TimerFired at this instant."""

    at_ms: int
