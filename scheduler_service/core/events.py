"""Facts, in the past tense: the only thing that ever changes the engine. Each is stored before it is handled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.records import JobPrediction, JobRequest, Node, PairPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact.

    Attributes:
        at_ms: When the scheduler learned of it; never earlier than the event before it.
        is_followed: It was learned together with the event after it: what both change is decided once, after the last.
    """

    at_ms: int
    is_followed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport(Event):
    """A fact about one launch of a job; stale ones (another attempt or fence) change nothing."""

    job_id: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport(AttemptReport):
    """A fact about what one node runs of a launch.

    Attributes:
        node_id: Which node; empty = the only one, or an older version did not note it.
    """

    node_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who wanted something.

    Attributes:
        role: Empty = unknown: callers were not told apart, or an older version did not note it.
        name: Of the user or program.
        address: Host, or "unix".
    """

    role: str = ""
    name: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandGiven(Event):
    """A fact that a caller wanted; who it was is told by audit and story, and changes nothing else."""

    actor: Actor | None = None


@slotted_record
class JobSubmitted(CommandGiven):
    """A user handed in a job.

    Attributes:
        request: What policies may know.
        launch: What only the agent needs, proto3 JSON of the JobSpec without its settings; never looked into.
        graph_sha256: Empty: nothing can be predicted.
        settings: How its steps are configured; passed on to predictor and agent. None: nothing was said.
    """

    request: JobRequest
    launch: Mapping[str, object] = field(default_factory=dict)
    graph_sha256: str = ""
    settings: JobSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(CommandGiven):
    """A user took a job back."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested(CommandGiven):
    """An operator wants a job to stand still for so long at most."""

    job_id: str
    paused_ms_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested(CommandGiven):
    """An operator wants a paused job to go on."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionArrived(Event):
    """The predictor answered for one key and device."""

    prediction: JobPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFailed(Event):
    """The predictor did not answer; jobs with this key run exclusively, with that reason shown."""

    key: str
    device: str
    code: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPredictionsArrived(Event):
    """The predictor answered a question about pairs."""

    pairs: tuple[PairPrediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPredictionsFailed(Event):
    """The predictor did not answer about these keys on this device."""

    device: str
    keys: tuple[str, ...]
    code: str
    message: str = ""
    sharing: DeviceSharing = DeviceSharing.UNSTATED


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsRefreshed(Event):
    """The predictor was asked again about known pairs: what it says else now, or in `code` why it did not answer."""

    device: str
    pairs: tuple[PairPrediction, ...] = ()
    code: str = ""
    sharing: DeviceSharing = DeviceSharing.UNSTATED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """An attempt that a joining node says it holds; `paused_ms` is how long it has stood still by order, in sum.

    Attributes:
        incarnation_id: Of the cluster under which its fence was given; empty = not stated.
        rendezvous_port: As in `JobStarted`, as is `resumed_fence`.
    """

    job_id: str
    attempt: int
    fence: int
    gpu_ids: tuple[str, ...]
    steps_done: int = 0
    is_paused: bool = False
    paused_ms: int = 0
    incarnation_id: str = ""
    rendezvous_port: int = 0
    resumed_fence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(Event):
    """An agent dialled in, with everything that still runs there.

    Ends that the agent still had to tell come before this event, each as its own report: an attempt that is neither
    reported nor listed counts as lost.
    """

    node: Node
    attempts: tuple[RunningAttempt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisconnected(Event):
    """The stream to an agent broke; its jobs run on until their leases end."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """Lease, grace and margin are over without a word: what ran there has certainly ended."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeForgotten(CommandGiven):
    """A node is no more: an operator said so, or another node has its GPUs; what ran there is given up."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealthChanged(Event):
    """A GPU of a node went bad or came back."""

    gpu_id: str
    healthy: bool
    fault: str = ""


@slotted_record
class JobStarted(PartReport):
    """The agent confirmed that the process runs; for the first node of a gang across nodes see `GangAttempt`."""

    rendezvous_port: int = 0
    resumed_fence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationReport(Event):
    """What an agent (empty = of all nodes) says of an attempt that it starts early; it is none that the job has yet."""

    job_id: str
    attempt: int
    fence: int
    node_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPrepared(PreparationReport):
    """The agent has started an attempt early, which waits for its launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationEnded(PreparationReport):
    """An attempt cannot be started early, or ended before its launch; nothing of it runs."""

    code: str
    message: str = ""


@slotted_record
class JobProgressed(AttemptReport):
    """Work done and measured since the last report.

    Attributes:
        steps_done: Optimizer steps since the job's very first start.
        window_steps: Steps inside the measured window.
        window_ms: Length of that window.
        window_span_ms: From the start of the earliest window in it to this report, with gaps and the wait for this
            report; 0 = not said: the window ended with the report.
        checkpoint_step: Newest believed checkpoint; -1 = none.
        quality_flags: Reasons for doubt of the window; see the contract.
        paused_ms: How long the attempt has stood still by order, in sum; no part of the window.
        rank_step_ms: (rank, time of its own for a step), of ranks that say so.
        steps_total: Optimizer steps of the whole job, as its script says them; 0 = it says none.
    """

    steps_done: int
    window_steps: int = 0
    window_ms: int = 0
    loss: float | None = None
    utilization_ratio: float | None = None
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    checkpoint_step: int = -1
    quality_flags: tuple[str, ...] = ()
    paused_ms: int = 0
    window_span_ms: int = 0
    rank_step_ms: tuple[tuple[int, float], ...] = ()
    steps_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPaused(PartReport):
    """The agent confirmed that every process of the attempt there stands still; its memory is as taken as before.

    Attributes:
        paused_ms: How long it has stood still by order, in sum over the attempt.
    """

    paused_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResumed(PartReport):
    """The attempt goes on, by order or because its pause was over; `paused_ms` as in `AttemptPaused`."""

    paused_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRefused(PartReport):
    """The agent cannot pause this attempt; it runs on."""

    code: str
    message: str = ""


@slotted_record
class JobStopped(PartReport):
    """The process has ended because it was told to, or checkpointed; its GPUs are free."""

    exit_class: str
    exit_code: int = 0
    steps_done: int = 0
    checkpoint_step: int = -1
    memory_peak_bytes: int = 0
    detail: str = ""


@slotted_record
class JobFinished(PartReport):
    """The process ended with success."""

    steps_done: int
    memory_peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(PartReport):
    """The process ended badly.

    Attributes:
        exit_class: One of the agent's classes (gpu_oom, host_oom, gpu_fault, communication, signal, error, lost,
            fenced).
        memory_available_bytes: For gpu_oom: what was available to the job where it failed.
    """

    exit_class: str
    exit_code: int = 0
    steps_done: int = 0
    checkpoint_step: int = -1
    memory_peak_bytes: int = 0
    memory_available_bytes: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefused(PartReport):
    """The agent would not start it (allow-list, capacity, stale fence); nothing ran.

    Attributes:
        is_final: No connected node would start it, now or later, so it is not tried again.
    """

    code: str
    message: str = ""
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationBegan(CommandGiven):
    """The state was restored from a backup, after which its former cluster may have given further ids and fences.

    Attributes:
        next_fence: Fences below it are not given any more.
        last_job_number: Nor are job ids up to this number.
        settled_at_ms: Before it no waiting job starts: attempts of which the backup knows nothing may run until then,
            on nodes that have not come back.
    """

    incarnation_id: str
    parent_id: str
    next_fence: int
    last_job_number: int
    settled_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreConfirmed(CommandGiven):
    """An operator said that the scheduler of the restored backup runs no more; it changes nothing in the engine."""

    incarnation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAttemptsFound(CommandGiven):
    """A joining node runs what an earlier incarnation ordered after the backup: the next `NodeJoined` stops it."""

    node_id: str
    attempts: tuple[RunningAttempt, ...]


@slotted_record
class TimerFired(Event):
    """An instant asked for by WakeAt has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChosen(CommandGiven):
    """An operator chose a policy."""

    policy: str
    parameters: Mapping[str, object] = field(default_factory=dict)
