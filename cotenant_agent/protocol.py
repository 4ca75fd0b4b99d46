"""Between the agent's records and the messages of the contract; nothing else."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_calibration_message import calibration_message
from cotenant.device_facts_message import facts_message
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings_message import settings_message, unchecked_settings
from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import resources_pb2
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.allow_list import AllowList, known_names
from cotenant_agent.ranks.rendezvous_addresses import is_host
from cotenant_agent.records import (
    AttemptEnd,
    AttemptKey,
    AttemptObservation,
    AttemptState,
    GangPart,
    GpuDescription,
    GpuReading,
    GrantedCheckpoint,
    LaunchRequest,
    LogPosition,
    MeasuredJob,
    MeasurementWindow,
    MemoryStates,
    ServerGroup,
)

# No measurement window with more is kept; heartbeats stay small.
_BINDINGS_MAX = 32
_PORT_MAX = 65_535
SERVERS_MAX = 64
"""Parameter servers of a job; no contract of any version allows more."""
Amount = TypeVar("Amount", int, float)
# Paths of each kind that a Hello lists; a scheduler keeps no more.
_NAMES_MAX = 1_000
_STATES = {
    AttemptState.PREPARING: messages.ATTEMPT_STATE_PREPARING,
    AttemptState.RUNNING: messages.ATTEMPT_STATE_RUNNING,
    AttemptState.PAUSED: messages.ATTEMPT_STATE_PAUSED,
    AttemptState.STOPPING: messages.ATTEMPT_STATE_STOPPING,
    AttemptState.ENDED: messages.ATTEMPT_STATE_ENDED,
}


def key_from_message(message: messages.AttemptKey) -> AttemptKey:
    """The identity of an attempt."""
    return AttemptKey(
        job_id=message.job_id, attempt=message.attempt, fence=message.fence, incarnation_id=message.incarnation_id
    )


def key_to_message(key: AttemptKey) -> messages.AttemptKey:
    """The identity of an attempt."""
    return messages.AttemptKey(
        job_id=key.job_id, attempt=key.attempt, fence=key.fence, incarnation_id=key.incarnation_id
    )


def position_from_message(message: messages.LogPosition) -> LogPosition:
    """Where a scheduler says that it is."""
    return LogPosition(
        incarnation_id=message.incarnation_id,
        generation=message.generation,
        start_id=message.start_id,
        sequence=message.sequence,
        seal=message.seal,
    )


def position_to_message(position: LogPosition) -> messages.LogPosition:
    """What this node has seen, for the Hello."""
    return messages.LogPosition(
        incarnation_id=position.incarnation_id,
        generation=position.generation,
        start_id=position.start_id,
        sequence=position.sequence,
        seal=position.seal,
    )


def _checkpoint(message: messages.GrantedCheckpoint) -> GrantedCheckpoint:
    return GrantedCheckpoint(
        incarnation_id=message.incarnation_id,
        fence=message.fence,
        node_id=message.node_id,
        part_node_ids=tuple(message.part_node_ids),
    )


def _granted(message: messages.LaunchJob) -> tuple[GrantedCheckpoint, ...]:
    """Whose checkpoints may be resumed; an older scheduler names fences only."""
    named = list(map(_checkpoint, message.granted_checkpoints))
    if named or message.key.incarnation_id:
        return tuple(named)
    return tuple(GrantedCheckpoint(incarnation_id="", fence=fence) for fence in message.granted_fences)


def launch_from_message(message: messages.LaunchJob, *, is_early: bool = False) -> LaunchRequest:
    """What the scheduler wants started; where that is to wait, parts of a gang learn later where their ranks meet.

    Raises:
        CommandRefusedError: It can be no part of a gang, or not have such parameter servers.
    """
    spec = message.spec
    assignments = sorted(message.assignments, key=lambda assignment: assignment.rank)
    gang_part, servers = _gang_part(message, is_early=is_early), _servers(message)
    servers_here = 0 if servers is None else len(servers.here)
    part_ratio = len(assignments) / gang_part.world_size if gang_part is not None else 1.0
    return LaunchRequest(
        key=key_from_message(message.key),
        command=tuple(spec.command),
        gpu_ids=tuple(assignment.gpu_id for assignment in assignments),
        rank=min((assignment.rank for assignment in message.assignments), default=0),
        working_directory=spec.working_directory,
        environment=dict(spec.environment),
        global_batch_size=spec.settings.global_batch_size,
        micro_batch_size=message.micro_batch_size,
        accumulation_steps=message.accumulation_steps,
        granted=_granted(message),
        steps_done=message.steps_done,
        memory_limit_bytes=message.memory_limit_bytes,
        memory_held_bytes=message.memory_held_bytes,
        yields_memory=message.yields_memory,
        checkpoint_ms=spec.checkpoint_ms,
        host_memory_bytes=_sum_of_limits(
            math.ceil(spec.host_memory_bytes * part_ratio), servers_here, spec.servers.host_memory_bytes
        ),
        cpu_cores=_sum_of_limits(spec.cpu_cores * part_ratio, servers_here, spec.servers.cpu_cores),
        progress_regex=spec.progress_regex,
        steps_total=spec.steps_total,
        batches_per_step=spec.batches_per_step,
        target_loss=spec.target_loss,
        co_located_limits={
            key_from_message(limit.key): limit.memory_limit_bytes for limit in message.co_located_limits
        },
        measured_job=_measured_job(message),
        tenant=spec.tenant,
        array_index=spec.array_index if spec.array_id else None,
        has_ranks=spec.ranks > 0,
        collective_timeout_ms=spec.collective_timeout_ms,
        gang_part=gang_part,
        servers=servers,
        watches_ranks=spec.straggler_ratio > 0,
    )


def _sum_of_limits(of_ranks: Amount, servers: int, of_server: Amount) -> Amount:
    """The limit of a job with its parameter servers; 0 where one of them is not limited."""
    return of_ranks + servers * of_server if of_ranks and (of_server or not servers) else of_ranks * 0


def _servers(message: messages.LaunchJob) -> ServerGroup | None:
    """The parameter servers of an attempt.

    Raises:
        CommandRefusedError: It cannot have them.
    """
    if not message.servers:
        return None
    part = range(message.gang_part.first_server, message.gang_part.first_server + message.gang_part.servers)
    is_within = 0 <= part.start <= part.stop <= message.servers
    if not 0 < message.servers <= SERVERS_MAX or not message.spec.ranks or not is_within:
        detail = f"{message.servers} parameter servers, here {part.start} to {part.stop}, need ranks, and are at most"
        raise CommandRefusedError("INVALID_GANG", f"{detail} {SERVERS_MAX}")
    stated = message.spec.servers
    return ServerGroup(
        count=message.servers,
        command=tuple(stated.command),
        blocks=dict(stated.blocks),
        part=part if message.HasField("gang_part") else None,
    )


def _gang_part(message: messages.LaunchJob, *, is_early: bool) -> GangPart | None:
    """Which part of a gang this node is given.

    Raises:
        CommandRefusedError: It cannot be one.
    """
    part = message.gang_part
    if not message.HasField("gang_part"):
        return None
    ranks = sorted(assignment.rank for assignment in message.assignments)
    is_row = ranks and ranks == list(range(ranks[0], ranks[0] + len(ranks))) and 0 <= ranks[0] <= ranks[-1]
    is_first = part.group_rank == 0
    is_port = part.master_port == 0 if is_first or is_early else 0 < part.master_port <= _PORT_MAX
    is_within = bool(is_row) and ranks[-1] < part.world_size and (ranks[0] == 0) is is_first
    if not (is_within and is_port and 0 <= part.group_rank < part.nodes and is_host(part.master_address)):
        raise CommandRefusedError("INVALID_GANG", "the order's part of a gang names no such ranks, nodes or address")
    return GangPart(
        world_size=part.world_size,
        group_rank=part.group_rank,
        nodes=part.nodes,
        master_address=part.master_address,
        master_port=part.master_port,
        resumed=_checkpoint(part.resumed) if part.HasField("resumed") else None,
    )


def gpu_to_message(
    gpu: GpuDescription,
    calibration: DeviceCalibration | None = None,
    not_calibrated: str = "",
    sharing: DeviceSharing = DeviceSharing.UNSTATED,
) -> messages.AgentGpu:
    """A device of the Hello, with what was measured of it or why nothing was, and how jobs share it."""
    return messages.AgentGpu(
        gpu_id=gpu.gpu_id,
        device=gpu.device,
        memory_bytes=gpu.memory_bytes,
        healthy=gpu.healthy,
        index=gpu.index,
        fault=gpu.fault,
        calibration=None if calibration is None else calibration_message(calibration),
        not_calibrated=not_calibrated,
        sharing=resources_pb2.DeviceSharing.ValueType(sharing),
        facts=facts_message(gpu.facts),
    )


def rules_to_message(allow_list: AllowList) -> messages.LaunchRules | None:
    """What this node runs, for the Hello; None where that is too much to list, and only the node itself refuses."""
    executables = [name for path in allow_list.executables for name in islice(known_names(path), _NAMES_MAX)]
    # Users name the folder or the link that leads to it.
    roots = [name for root in allow_list.directories for name in (str(Path(root).absolute()), os.path.realpath(root))]
    if max(map(len, (executables, roots, allow_list.environment))) >= _NAMES_MAX:
        return None
    return messages.LaunchRules(
        any_command=allow_list.any_command,
        executables=dict.fromkeys(executables),
        directories=dict.fromkeys(roots),
        environment_patterns=allow_list.environment,
    )


def reading_to_message(reading: GpuReading) -> messages.GpuObservation:
    """A device of a heartbeat; what is unknown is unset."""
    return messages.GpuObservation(
        gpu_id=reading.gpu_id,
        healthy=reading.healthy,
        fault=reading.fault,
        memory_used_bytes=reading.memory_used_bytes,
        utilization_ratio=reading.utilization_ratio,
        sm_activity_ratio=reading.sm_activity_ratio,
        power_watts=reading.power_watts,
    )


def observation_to_message(
    observation: AttemptObservation, state: AttemptState, rank_step_ms: Iterable[tuple[int, float]] = ()
) -> messages.AttemptObservation:
    """An attempt of a heartbeat; what is unknown is unset.

    Args:
        observation: What was measured of it.
        state: Where it is in its life.
        rank_step_ms: By rank, how long it took for a step of its own.
    """
    return messages.AttemptObservation(
        key=key_to_message(observation.key),
        steps_done=observation.steps_done,
        epoch=observation.epoch,
        loss=observation.loss,
        window_steps=observation.window_steps,
        window_ms=observation.window_ms,
        utilization_ratio=observation.utilization_ratio,
        memory_bytes=observation.memory_bytes,
        memory_peak_bytes=observation.memory_peak_bytes,
        checkpoint_step=observation.checkpoint_step,
        quality_flags=observation.quality_flags,
        paused_ms=observation.paused_ms,
        state=_STATES[state],
        rank_step_times=[messages.RankStepTime(rank=rank, own_step_ms=own_ms) for rank, own_ms in rank_step_ms],
        memory_states=_memory_states(observation.memory_states),
        allocated_bytes=observation.allocated_bytes,
        are_ranks_done=observation.are_ranks_done,
        steps_total=observation.steps_total,
    )


def _memory_states(states: MemoryStates | None) -> resources_pb2.MemoryStates | None:
    if states is None:
        return None
    return resources_pb2.MemoryStates(
        low_bytes=states.low_bytes, extra_bytes=states.extra_bytes, high_state_ratio=states.high_state_ratio
    )


def end_to_message(end: AttemptEnd) -> messages.AttemptExited:
    """The end of an attempt."""
    return messages.AttemptExited(
        key=key_to_message(end.key),
        exit_class=end.exit_class,
        exit_code=end.exit_code,
        steps_done=end.steps_done,
        checkpoint_step=end.checkpoint_step,
        memory_peak_bytes=end.memory_peak_bytes,
        memory_available_bytes=end.memory_available_bytes,
        log_tail=end.log_tail,
        detail=end.detail,
        failed_rank=end.failed_rank,
    )


def status_to_message(attempt: Attempt) -> messages.AttemptStatus:
    """An attempt of the Hello; one whose end was not read yet runs on, for an end without its details reads as lost."""
    is_unread = attempt.end is None and attempt.state is AttemptState.ENDED
    return messages.AttemptStatus(
        key=key_to_message(attempt.key),
        state=messages.ATTEMPT_STATE_RUNNING if is_unread else _STATES[attempt.state],
        gpu_ids=attempt.gpu_ids,
        steps_done=attempt.track.steps_done,
        paused_ms=attempt.pause.paused_ms,
        rendezvous_port=attempt.rendezvous_port,
        resumed_fence=attempt.resumed_fence,
        exited=None if attempt.end is None else end_to_message(attempt.end),
    )


def window_to_message(window: MeasurementWindow) -> resources_pb2.MeasurementWindow:
    """What was measured of a job; what is unknown is unset."""
    return resources_pb2.MeasurementWindow(
        window_id=window.window_id,
        campaign=window.campaign,
        device=window.device,
        job=_job_to_message(window.job),
        co_located_jobs=[_job_to_message(job) for job in window.others],
        micro_batch_size=window.job.micro_batch_size,
        steps=window.steps,
        window_ms=window.window_ms,
        utilization_ratio=window.utilization_ratio,
        sm_activity_ratio=window.sm_activity_ratio,
        memory_peak_bytes=window.memory_peak_bytes,
        power_watts=window.power_watts,
        quality_flags=window.quality_flags,
        under_mps=window.under_mps,
    )


def _job_to_message(job: MeasuredJob) -> resources_pb2.MeasuredJob:
    settings = resources_pb2.JobSettings()
    # They were read from a file: what cannot be sent must not end the conversation, on which leases depend.
    with contextlib.suppress(ValueError, TypeError):
        settings = settings_message(job.settings)
    return resources_pb2.MeasuredJob(graph_sha256=job.graph_sha256, settings=settings)


def _measured_job(message: messages.LaunchJob) -> MeasuredJob | None:
    """What may be recorded of a job; nothing when its owner does not want it, or nothing can be learned from it."""
    spec = message.spec
    is_wide = len(message.assignments) != 1 or spec.gpus > 1
    if spec.no_profiles or not spec.graph_sha256 or is_wide or len(spec.settings.dimension_bindings) > _BINDINGS_MAX:
        return None
    settings = unchecked_settings(spec.settings)
    return MeasuredJob(graph_sha256=spec.graph_sha256, settings=settings, micro_batch_size=message.micro_batch_size)
