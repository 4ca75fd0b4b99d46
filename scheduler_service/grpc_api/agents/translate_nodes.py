"""Nodes and their GPUs: what the engine holds there, what the agent last measured."""

from __future__ import annotations

from cotenant.device_calibration_message import calibration_message
from cotenant.v1 import node_agent_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSession, AgentSessions
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.records import Node
from scheduler_service.core.state import ClusterState

FAULT_CHARACTERS_MAX = 500
_NOTHING_OBSERVED = node_agent_pb2.GpuObservation()


def node_message(state: ClusterState, node: Node, sessions: AgentSessions) -> scheduling_pb2.Node:
    """Return a node; without a session nothing is known about the present use of its GPUs."""
    session = sessions.connected.get(node.node_id)
    return scheduling_pb2.Node(
        node_id=node.node_id,
        rack_id=node.rack_id,
        connected=node.connected,
        schedulable=node.schedulable and not node.is_cordoned,
        cpu_cores=node.cpu_cores,
        host_memory_bytes=node.host_memory_bytes,
        gpus=[_gpu_message(state, state.gpus[gpu.gpu_id], session) for gpu in node.gpus],
        last_heartbeat_at_ms=sessions.heard_at_ms(node.node_id),
        agent_version=node.agent_version,
        enforcements=node.enforcements,
        cordoned=node.is_cordoned,
        draining=node.is_draining,
    )


def _gpu_message(state: ClusterState, view: GpuView, session: AgentSession | None) -> scheduling_pb2.Gpu:
    observed = session.observed_gpus.get(view.gpu.gpu_id, _NOTHING_OBSERVED) if session else _NOTHING_OBSERVED
    return scheduling_pb2.Gpu(
        gpu_id=view.gpu.gpu_id,
        device=view.gpu.device,
        memory_bytes=view.gpu.memory_bytes,
        healthy=view.gpu.healthy,
        job_ids=view.job_ids,
        memory_reserved_bytes=view.memory_reserved_bytes,
        memory_used_bytes=observed.memory_used_bytes,
        utilization_ratio=observed.utilization_ratio,
        slowdown_ewma_ratio=state.occupancy.slowdown_ewma_ratios.get(view.gpu.gpu_id, 0.0),
        # A job that is paused closes its GPU too, and leaves nothing.
        releasing=view.is_releasing and not any(state.jobs[job_id].pause for job_id in view.job_ids),
        node_id=view.node_id,
        index=view.gpu.index,
        calibration=calibration_message(calibration) if (calibration := view.gpu.calibration) else None,
        not_calibrated=view.gpu.not_calibrated,
        sharing=resources_pb2.DeviceSharing.ValueType(view.gpu.sharing),
        fault="" if view.gpu.healthy else observed.fault[:FAULT_CHARACTERS_MAX],
    )
