"""Mutants: the product with one rule taken out, so that it is known which rules the swarm guards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cotenant.job import MANIFEST_NAME
from cotenant.v1.node_agent_pb2 import HeartbeatAck
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.conversation import Conversation
from cotenant_agent.system_clock import boot_ms
from scheduler_service.adapters import recovery
from scheduler_service.adapters.node_leases import NodeLeases
from scheduler_service.core.commands import Command
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import Event, JobStarted
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.occupancy import Occupancy
from scheduler_service.core.records import Phase
from scheduler_service.grpc_api import agent_admission
from scheduler_service.grpc_api.agent_admission import AttemptStanding
from scheduler_service.live_loop import LiveLoop

Mutant = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _sender_check_skipped() -> contextlib.AbstractContextManager[None]:
    """What one node says of another one's attempt counts."""
    real = agent_admission.standing_of

    def standing(state: Any, key: Any, node_id: str) -> AttemptStanding:
        found = real(state, key, node_id)
        return AttemptStanding.HELD if found is AttemptStanding.FOREIGN else found

    return _replaced(agent_admission, "standing_of", standing)


def _stale_fence_accepted() -> contextlib.AbstractContextManager[None]:
    """What is said of an old attempt counts for the present one."""
    real = agent_admission.standing_of

    def standing(state: Any, key: Any, node_id: str) -> AttemptStanding:
        job = state.jobs.get(key.job_id)
        if job is not None and job.holds_gpus and node_id in job.node_ids:
            key.attempt, key.fence = job.attempt, job.fence
        return real(state, key, node_id)

    return _replaced(agent_admission, "standing_of", standing)


def _early_loss() -> contextlib.AbstractContextManager[None]:
    """A silent node counts as lost at the end of its lease, without the grace."""
    real = NodeLeases.__init__

    def begin(self: NodeLeases, *, lease_ms: int, grace_ms: int, margin_ratio: float) -> None:
        real(self, lease_ms=lease_ms, grace_ms=0, margin_ratio=0.0)

    return _replaced(NodeLeases, "__init__", begin)


def _release_before_confirmed_end() -> contextlib.AbstractContextManager[None]:
    """A job that is asked to stop holds its GPUs no more."""
    real = JobRecord.occupied_bytes

    def occupied_bytes(self: JobRecord) -> Mapping[str, int]:
        return {} if self.phase is Phase.STOPPING else real.__get__(self)

    return _replaced(JobRecord, "occupied_bytes", property(occupied_bytes))


def _double_count_of_a_gpu() -> contextlib.AbstractContextManager[None]:
    """An attempt that was given up takes no GPU, although its process still does."""
    return _replaced(Occupancy, "put_abandoned", lambda self, abandoned: None)


def _lost_wake_up() -> contextlib.AbstractContextManager[None]:
    """Nobody wakes the engine at the instants that it asked for."""
    return _replaced(LiveLoop, "fire_timers", lambda self: None)


def _replay_without_a_record() -> contextlib.AbstractContextManager[None]:
    """A restart does not see that jobs have started."""
    real = recovery.apply_event

    def apply_event(engine: SchedulerEngine, event: Event) -> list[Command]:
        return [] if isinstance(event, JobStarted) else real(engine, event)

    return _replaced(recovery, "apply_event", apply_event)


def _checkpoint_of_another_lineage() -> contextlib.AbstractContextManager[None]:
    """Any checkpoint that lies there may be resumed."""

    def directories(self: ClusterMembership, root: Path, job_id: str, granted: object) -> list[Path]:
        return sorted(path.parent for path in root.rglob(MANIFEST_NAME))

    return _replaced(ClusterMembership, "checkpoint_directories", directories)


def _lease_renewed_by_a_dead_session() -> contextlib.AbstractContextManager[None]:
    """A late answer renews from when it arrives, however long ago its scheduler gave the node up."""
    real = Conversation._take_ack

    def take_ack(self: Conversation, ack: HeartbeatAck) -> None:
        self._sent_beats[ack.sequence] = boot_ms()
        real(self, ack)

    return _replaced(Conversation, "_take_ack", take_ack)


MUTANTS: Mapping[str, Mutant] = {
    "sender_check_skipped": _sender_check_skipped,
    "stale_fence_accepted": _stale_fence_accepted,
    "early_loss": _early_loss,
    "checkpoint_of_another_lineage": _checkpoint_of_another_lineage,
    "lease_renewed_by_a_dead_session": _lease_renewed_by_a_dead_session,
    "release_before_confirmed_end": _release_before_confirmed_end,
    "double_count_of_a_gpu": _double_count_of_a_gpu,
    "lost_wake_up": _lost_wake_up,
    "replay_without_a_record": _replay_without_a_record,
}
