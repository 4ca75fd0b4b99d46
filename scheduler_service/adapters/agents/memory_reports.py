"""What agents report about the memory of jobs that release it: read, and left out where it is no news."""

from __future__ import annotations

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_messages import of_attempt
from scheduler_service.core.memory_events import MemoryReported
from scheduler_service.core.sharing.peak_pauses import is_news
from scheduler_service.core.state import ClusterState


def memory_news(state: ClusterState, observation: node_agent_pb2.AttemptObservation) -> MemoryReported | None:
    """Return what a heartbeat says of a job's memory where that changes anything.

    Args:
        state: Has the job.
        observation: Of its present attempt.
    """
    job = state.jobs[observation.key.job_id]
    report = memory_report(observation) if job.request.releases_memory else None
    return report if report is not None and is_news(state, job, report) else None


def memory_report(observation: node_agent_pb2.AttemptObservation) -> MemoryReported | None:
    """Read what a job that releases memory has allocated; None = it does not say, or says what cannot be."""
    states = observation.memory_states
    figures = (observation.allocated_bytes, states.low_bytes, states.extra_bytes)
    if not observation.HasField("allocated_bytes") or min(figures) < 0 or not 0.0 <= states.high_state_ratio <= 1.0:
        return None
    return MemoryReported(
        **of_attempt(observation.key),
        used_bytes=observation.allocated_bytes,
        low_bytes=states.low_bytes,
        extra_bytes=states.extra_bytes,
        high_state_ratio=states.high_state_ratio,
    )
