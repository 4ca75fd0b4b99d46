"""The stream to a node agent: what it reports becomes events, what the engine orders becomes messages."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TypedDict

from cotenant.device_calibration import CalibrationError, DeviceCalibration
from cotenant.device_calibration_message import read_calibration_message
from cotenant.device_facts_message import read_facts_message
from cotenant.device_sharing import DeviceSharing
from cotenant.system_clock import now_ms
from cotenant.v1 import node_agent_pb2, scheduling_pb2
from cotenant.v1.node_agent_pb2 import ConnectResponse
from scheduler_service.adapters.job_specs import spec_message
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.core.commands import (
    CoLocatedLimit,
    GangPart,
    LaunchJob,
    PauseJob,
    PrepareJob,
    ResumeJob,
    StopJob,
)
from scheduler_service.core.events import (
    AttemptPaused,
    AttemptPrepared,
    AttemptResumed,
    GpuHealthChanged,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobStarted,
    JobStopped,
    LaunchRefused,
    NodeJoined,
    PauseRefused,
    PreparationEnded,
    PreparationReport,
    RunningAttempt,
)
from scheduler_service.core.records import FOREIGN_LOAD, Gpu, Node

# Exit classes that mean "ended because it was asked to".
_STOPPED_CLASSES = frozenset({"checkpointed", "stopped"})
_DETAIL_CHARACTERS_MAX = 4_000
_CAUSE_CHARACTERS_MAX = 200
# Of a window: what an agent reports beyond these is not stored.
_KNOWN_FLAGS = frozenset({FOREIGN_LOAD})
# The code with which an agent refuses to pause an attempt, for whatever cause.
NOT_PAUSABLE = "NOT_PAUSABLE"
# The code with which an agent refuses an order about an attempt that it does not know.
NO_SUCH_ATTEMPT = "NO_SUCH_ATTEMPT"
# Of a scheduler without a state of its own, as in tests.
_UNNAMED = ClusterIdentity()
_PORT_MAX = 65_535
_RANKS_TOLD_MAX = 1_024
# How long a stop may take when the job states nothing about its checkpoints.
DEFAULT_STOP_GRACE_MS = 30_000


class NamedAttempt(TypedDict):
    """What every event about one attempt begins with; the instant is set by the live loop."""

    at_ms: int
    job_id: str
    attempt: int
    fence: int


def of_attempt(key: node_agent_pb2.AttemptKey) -> NamedAttempt:
    """Read which attempt a message is about."""
    return {"at_ms": 0, "job_id": key.job_id, "attempt": key.attempt, "fence": key.fence}


def node_joined(hello: node_agent_pb2.Hello) -> NodeJoined:
    """Read the first message of a stream; attempts that have ended are returned by `ended_attempts`."""
    node = Node(
        node_id=hello.node_id,
        rack_id=hello.rack_id,
        cpu_cores=hello.cpu_cores,
        host_memory_bytes=hello.host_memory_bytes,
        gpus=tuple(_gpu(gpu) for gpu in hello.gpus),
        enforcements=tuple(hello.enforcements),
        agent_version=hello.agent_version,
        boot_id=hello.boot_id,
        machine_id=hello.machine_id,
        installation_id=hello.installation_id,
        rendezvous_address=hello.rendezvous_address,
        storage_id=hello.storage_id,
    )
    attempts = tuple(
        RunningAttempt(
            job_id=status.key.job_id,
            attempt=status.key.attempt,
            fence=status.key.fence,
            gpu_ids=tuple(status.gpu_ids),
            steps_done=status.steps_done,
            is_paused=status.state == node_agent_pb2.ATTEMPT_STATE_PAUSED,
            paused_ms=status.paused_ms,
            incarnation_id=status.key.incarnation_id,
            rendezvous_port=status.rendezvous_port,
            resumed_fence=max(0, status.resumed_fence),
        )
        for status in hello.attempts
        if status.state != node_agent_pb2.ATTEMPT_STATE_ENDED
    )
    return NodeJoined(at_ms=0, node=node, attempts=attempts)


def _gpu(gpu: node_agent_pb2.AgentGpu) -> Gpu:
    calibration, cause = _calibration(gpu)
    return Gpu(
        gpu_id=gpu.gpu_id,
        device=gpu.device,
        memory_bytes=gpu.memory_bytes,
        healthy=gpu.healthy,
        index=gpu.index,
        calibration=calibration,
        not_calibrated=cause,
        sharing=DeviceSharing(gpu.sharing),
        facts=read_facts_message(gpu.facts) if gpu.HasField("facts") else None,
    )


def _calibration(gpu: node_agent_pb2.AgentGpu) -> tuple[DeviceCalibration | None, str]:
    """Read what was measured of a device, or why there is nothing; what cannot be is no reason to refuse a node."""
    if not gpu.HasField("calibration"):
        return None, gpu.not_calibrated[:_CAUSE_CHARACTERS_MAX]
    try:
        found = read_calibration_message(gpu.calibration, now_ms())
    except CalibrationError as error:
        return None, error.message[:_CAUSE_CHARACTERS_MAX]
    if found.device != gpu.device:
        return None, f"its node sent the calibration of a {found.device}"[:_CAUSE_CHARACTERS_MAX]
    return found, ""


def ended_attempts(hello: node_agent_pb2.Hello) -> Iterator[node_agent_pb2.AttemptExited]:
    """Yield the ends that the agent still keeps because they are unconfirmed."""
    for status in hello.attempts:
        if status.state == node_agent_pb2.ATTEMPT_STATE_ENDED:
            exited = node_agent_pb2.AttemptExited()
            exited.CopyFrom(status.exited)
            exited.key.CopyFrom(status.key)
            exited.exit_class = exited.exit_class or "lost"
            exited.steps_done = max(exited.steps_done, status.steps_done)
            yield exited


def attempt_started(started: node_agent_pb2.AttemptStarted) -> JobStarted:
    """Read the confirmation of a launch."""
    return JobStarted(
        **of_attempt(started.key),
        rendezvous_port=started.rendezvous_port if 0 <= started.rendezvous_port <= _PORT_MAX else 0,
        resumed_fence=max(0, started.resumed_fence),
    )


def attempt_ended(exited: node_agent_pb2.AttemptExited) -> JobFinished | JobStopped | JobFailed:
    """Read the end of an attempt by its exit class."""
    key = exited.key
    if exited.exit_class == "done":
        return JobFinished(
            **of_attempt(key),
            steps_done=exited.steps_done,
            memory_peak_bytes=exited.memory_peak_bytes,
        )
    if exited.exit_class in _STOPPED_CLASSES:
        return JobStopped(
            **of_attempt(key),
            exit_class=exited.exit_class,
            exit_code=exited.exit_code,
            steps_done=exited.steps_done,
            checkpoint_step=exited.checkpoint_step,
            memory_peak_bytes=exited.memory_peak_bytes,
            detail=exited.detail[-_DETAIL_CHARACTERS_MAX:],
        )
    return JobFailed(
        **of_attempt(key),
        exit_class=exited.exit_class,
        exit_code=exited.exit_code,
        steps_done=exited.steps_done,
        checkpoint_step=exited.checkpoint_step,
        memory_peak_bytes=exited.memory_peak_bytes,
        memory_available_bytes=exited.memory_available_bytes,
        detail=(exited.detail or exited.log_tail)[-_DETAIL_CHARACTERS_MAX:],
    )


def command_refused(
    refused: node_agent_pb2.CommandRefused, *, is_final: bool = False
) -> JobFailed | LaunchRefused | PauseRefused:
    """Read a refusal; an attempt that the node does not know has been lost with its traces.

    Args:
        refused: The node's message.
        is_final: Asking again would not help, here or on another node.
    """
    key = refused.key
    if refused.code == NO_SUCH_ATTEMPT:
        return JobFailed(
            **of_attempt(key),
            exit_class="lost",
            detail=refused.message,
        )
    if refused.code == NOT_PAUSABLE:
        return PauseRefused(
            **of_attempt(key),
            code=refused.code,
            message=refused.message[:_DETAIL_CHARACTERS_MAX],
        )
    return LaunchRefused(
        **of_attempt(key),
        code=refused.code,
        message=refused.message[:_DETAIL_CHARACTERS_MAX],
        is_final=is_final,
    )


def preparation_change(message: node_agent_pb2.ConnectRequest) -> PreparationReport:
    """Read that an attempt, started early, waits for its launch, or why it does not."""
    if message.HasField("attempt_prepared"):
        return AttemptPrepared(**of_attempt(message.attempt_prepared.key))
    ended = message.preparation_ended
    return PreparationEnded(
        **of_attempt(ended.key),
        code=ended.code[:_CAUSE_CHARACTERS_MAX],
        message=ended.message[:_CAUSE_CHARACTERS_MAX],
    )


def progress(observation: node_agent_pb2.AttemptObservation) -> JobProgressed:
    """Read what a heartbeat reports about one attempt."""
    return JobProgressed(
        **of_attempt(observation.key),
        steps_done=observation.steps_done,
        window_steps=observation.window_steps,
        window_ms=observation.window_ms,
        loss=observation.loss if observation.HasField("loss") else None,
        utilization_ratio=observation.utilization_ratio if observation.HasField("utilization_ratio") else None,
        memory_bytes=observation.memory_bytes,
        memory_peak_bytes=observation.memory_peak_bytes,
        checkpoint_step=observation.checkpoint_step,
        quality_flags=tuple(sorted(_KNOWN_FLAGS & set(observation.quality_flags))),
        paused_ms=observation.paused_ms,
        rank_step_ms=_rank_step_ms(observation),
        steps_total=observation.steps_total,
    )


def _rank_step_ms(observation: node_agent_pb2.AttemptObservation) -> tuple[tuple[int, float], ...]:
    told = observation.rank_step_times[:_RANKS_TOLD_MAX]
    return tuple((one.rank, one.own_step_ms) for one in told if one.rank >= 0 and 0 < one.own_step_ms < inf)


def pause_change(
    observation: node_agent_pb2.AttemptObservation, *, is_believed_paused: bool
) -> AttemptPaused | AttemptResumed | None:
    """Read whether an attempt stands still; None = as is believed, or the agent does not say."""
    said = {node_agent_pb2.ATTEMPT_STATE_PAUSED: True, node_agent_pb2.ATTEMPT_STATE_RUNNING: False}
    is_paused = said.get(observation.state, is_believed_paused)
    if is_paused is is_believed_paused:
        return None
    kind = AttemptPaused if is_paused else AttemptResumed
    return kind(
        **of_attempt(observation.key),
        paused_ms=observation.paused_ms,
    )


def health_changed(observation: node_agent_pb2.GpuObservation) -> GpuHealthChanged:
    """Read what a heartbeat reports about the health of a GPU."""
    return GpuHealthChanged(
        at_ms=0, gpu_id=observation.gpu_id, healthy=observation.healthy, fault=observation.fault[:500]
    )


def launch_message(command: LaunchJob, identity: ClusterIdentity = _UNNAMED, *, sequence: int = 0) -> ConnectResponse:
    """Order the launch of one attempt; `sequence` is that of the event that led to it."""
    fences = command.granted_fences
    node_ids = (*command.granted_node_ids, *[""] * len(fences))
    parts: tuple[tuple[str, ...], ...] = (*command.granted_parts, *[()] * len(fences))
    granted = [
        node_agent_pb2.GrantedCheckpoint(
            incarnation_id=identity.incarnation_of(fence), fence=fence, node_id=node_id, part_node_ids=of_parts
        )
        for fence, node_id, of_parts in zip(fences, node_ids, parts, strict=False)
    ]
    return ConnectResponse(
        launch_job=node_agent_pb2.LaunchJob(
            key=_key(command, identity),
            spec=spec_message(command.launch, command.settings),
            assignments=[
                scheduling_pb2.Assignment(gpu_id=assignment.gpu_id, rank=assignment.rank)
                for assignment in command.assignments
            ],
            micro_batch_size=command.micro_batch_size,
            accumulation_steps=command.accumulation_steps,
            granted_fences=fences,
            memory_limit_bytes=command.memory_limit_bytes,
            memory_held_bytes=command.memory_held_bytes,
            yields_memory=command.yields_memory,
            steps_done=command.steps_done,
            granted_checkpoints=granted,
            position=identity.position(sequence),
            gang_part=_gang_part(command.gang_part, identity),
            servers=command.servers,
            co_located_limits=[
                node_agent_pb2.AttemptMemoryLimit(
                    key=_key(limit, identity), memory_limit_bytes=limit.memory_limit_bytes
                )
                for limit in command.co_located_limits
            ],
        )
    )


def prepare_message(command: PrepareJob, identity: ClusterIdentity = _UNNAMED, *, sequence: int = 0) -> ConnectResponse:
    """Order that an attempt is started early; `sequence` as in `launch_message`."""
    launch = launch_message(command.launch, identity, sequence=sequence).launch_job
    return ConnectResponse(prepare_job=node_agent_pb2.PrepareJob(key=launch.key, launch=launch))


def _gang_part(part: GangPart | None, identity: ClusterIdentity) -> node_agent_pb2.GangPart | None:
    if part is None:
        return None
    fence = part.resumed_fence
    resumed = node_agent_pb2.GrantedCheckpoint(
        incarnation_id=identity.incarnation_of(fence), fence=fence, node_id=part.resumed_node_id
    )
    return node_agent_pb2.GangPart(
        world_size=part.world_size,
        group_rank=part.group_rank,
        nodes=part.nodes,
        master_address=part.master_address,
        master_port=part.master_port,
        resumed=resumed if fence and part.group_rank else None,
        first_server=part.first_server,
        servers=part.servers,
    )


def stop_message(command: StopJob, identity: ClusterIdentity = _UNNAMED, *, checkpoint_ms: int) -> ConnectResponse:
    """Order the end of one attempt; the grace is twice the declared time of a checkpoint."""
    key = _key(command, identity)
    key.incarnation_id = command.incarnation_id or key.incarnation_id
    grace_ms = 2 * checkpoint_ms or DEFAULT_STOP_GRACE_MS
    return ConnectResponse(
        stop_job=node_agent_pb2.StopJob(
            key=key,
            checkpoint=command.checkpoint,
            cause=command.cause,
            grace_ms=min(grace_ms, command.grace_ms_max or grace_ms),
        )
    )


def pause_message(command: PauseJob, identity: ClusterIdentity = _UNNAMED) -> ConnectResponse:
    """Order a pause of one attempt."""
    key = _key(command, identity)
    return ConnectResponse(
        pause_job=node_agent_pb2.PauseJob(key=key, cause=command.cause, paused_ms_max=command.paused_ms_max)
    )


def resume_message(command: ResumeJob, identity: ClusterIdentity = _UNNAMED) -> ConnectResponse:
    """Order the end of a pause."""
    return ConnectResponse(resume_job=node_agent_pb2.ResumeJob(key=_key(command, identity)))


def _key(
    command: LaunchJob | StopJob | PauseJob | ResumeJob | CoLocatedLimit, identity: ClusterIdentity
) -> node_agent_pb2.AttemptKey:
    return node_agent_pb2.AttemptKey(
        job_id=command.job_id,
        attempt=command.attempt,
        fence=command.fence,
        incarnation_id=identity.incarnation_of(command.fence),
    )
