"""Mutants: the product with one rule taken out, so that it is known which rules the swarm guards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cotenant.job import MANIFEST_NAME
from cotenant.v1 import node_agent_pb2
from cotenant_agent.checkpointing import checkpoints
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.keeper.job_hold import JobHold
from cotenant_agent.keeper.rank_ends import RankEnds, RankSilence
from cotenant_agent.keeper.shim import AttemptSupervisor
from cotenant_agent.records import LogPosition
from scheduler_service.adapters.agents.agent_sessions import AgentSession, AgentSessions
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.storage import recovery
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.core.commands import Command
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.event_handling import job_events, node_events
from scheduler_service.core.events import Event, JobSubmitted
from scheduler_service.core.gangs import gang_attempts
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle import attempts
from scheduler_service.core.records import AfterStop, Phase
from scheduler_service.errors import StandstillError
from scheduler_service.grpc_api.agents import agent_admission
from scheduler_service.grpc_api.agents.agent_admission import AgentAdmission, AttemptStanding
from scheduler_service.grpc_api.agents.node_agent_servicer import NodeAgentServicer

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
    """A silent node counts as lost long before its lease is over."""
    real = NodeLeases.__init__

    def begin(self: NodeLeases, *, lease_ms: int, grace_ms: int, margin_ratio: float) -> None:
        real(self, lease_ms=lease_ms // 4, grace_ms=0, margin_ratio=0.0)

    return _replaced(NodeLeases, "__init__", begin)


def _sleep_counts_nowhere() -> contextlib.AbstractContextManager[None]:
    """Leases on every node stand still while it sleeps, also where the scheduler does not."""
    real = NodeAgentServicer._welcome

    def welcome(self: NodeAgentServicer, session: AgentSession, boot_id: str) -> node_agent_pb2.Welcome:
        said = real(self, session, boot_id)
        said.same_boot = True
        return said

    return _replaced(NodeAgentServicer, "_welcome", welcome)


def _standstill_lets_run() -> contextlib.AbstractContextManager[None]:
    """A job whose lease ended in a standstill runs while a newer one is waited for."""
    return _replaced(JobHold, "hold", lambda self, now_ms: True)


def _standstill_never_ends() -> contextlib.AbstractContextManager[None]:
    """A job that was held after a standstill stays so, whatever lease comes."""
    return _replaced(JobHold, "release", lambda self: True)


def _release_before_confirmed_end() -> contextlib.AbstractContextManager[None]:
    """A job that is asked to stop holds its GPUs no more."""
    real = JobRecord.occupied_bytes

    def occupied_bytes(self: JobRecord) -> Mapping[str, int]:
        return {} if self.phase is Phase.STOPPING else real.__get__(self)

    return _replaced(JobRecord, "occupied_bytes", property(occupied_bytes))


def _double_count_of_a_gpu() -> contextlib.AbstractContextManager[None]:
    """A job on several GPUs takes the first of them only."""
    real = JobRecord.occupied_bytes

    def occupied_bytes(self: JobRecord) -> Mapping[str, int]:
        return dict(list(real.__get__(self).items())[:1])

    return _replaced(JobRecord, "occupied_bytes", property(occupied_bytes))


def _lost_wake_up() -> contextlib.AbstractContextManager[None]:
    """A job that waits after a failure is not shown to the policy when its time has come."""
    return _replaced(SchedulerEngine, "_release_due", lambda self, step: None)


def _replay_without_a_record() -> contextlib.AbstractContextManager[None]:
    """A restart does not see one of the stored facts."""
    real = recovery.apply_event

    def apply_event(restored: SchedulerEngine, event: Event) -> list[Command]:
        is_dropped = isinstance(event, JobSubmitted) and event.request.job_id == "job-3"
        return [] if is_dropped else real(restored, event)

    return _replaced(recovery, "apply_event", apply_event)


def _checkpoint_of_another_lineage() -> contextlib.AbstractContextManager[None]:
    """Any checkpoint that lies there may be resumed."""

    def directories(self: ClusterMembership, root: Path, job_id: str, granted: object) -> list[Path]:
        return sorted(path.parent for path in root.rglob(MANIFEST_NAME))

    return _replaced(ClusterMembership, "checkpoint_directories", directories)


def _forged_checkpoint_accepted() -> contextlib.AbstractContextManager[None]:
    """Nobody looks for which job and attempt a checkpoint was written that another node has sent."""
    return _replaced(checkpoints, "_is_of", lambda directory, manifest: True)


@contextlib.contextmanager
def _starts_right_after_a_restore() -> Iterator[None]:
    """A restored state starts what it knows as waiting although a later attempt of it may run."""

    def nothing(*arguments: object) -> None:
        del arguments

    with _replaced(node_events, "hold_until", nothing), _replaced(attempts, "hold_until", nothing):
        yield


@contextlib.contextmanager
def _incarnation_dropped() -> Iterator[None]:
    """Nobody compares whose scheduler, and which start of it, gave a fence or was seen by a node."""
    join = ClusterMembership.join

    def admits_all(self: AgentAdmission, hello: node_agent_pb2.Hello) -> None:
        if self._standstill.code:
            raise StandstillError(self._standstill.message)

    def joins_all(
        self: ClusterMembership, position: LogPosition | None, ancestor_ids: Iterable[str], *, is_free: bool
    ) -> None:
        join(self, position, ancestor_ids, is_free=True)

    with (
        _replaced(AgentAdmission, "_check_cluster", admits_all),
        _replaced(ClusterIdentity, "owns", lambda self, key: True),
        _replaced(ClusterMembership, "join", joins_all),
        _replaced(ClusterMembership, "holds", lambda self, key: True),
        _replaced(ClusterMembership, "_check_not_behind", lambda self, position, highest: None),
    ):
        yield


def _late_hello_believed() -> contextlib.AbstractContextManager[None]:
    """What an agent said before it dialed anew counts, although its node may have begun something in between."""
    return _replaced(AgentAdmission, "_check_order", lambda self, hello: None)


def _lease_renewed_by_a_dead_session() -> contextlib.AbstractContextManager[None]:
    """A node counts as heard although its stream has ended."""
    return _replaced(AgentSessions, "end", lambda self, session: False)


def _rank_end_ignored() -> contextlib.AbstractContextManager[None]:
    """A rank that ends without success ends no other."""
    return _replaced(RankEnds, "peers_grace_ms", lambda self, stop_grace_ms: None)


def _silent_ranks_unnoticed() -> contextlib.AbstractContextManager[None]:
    """Ranks may wait for ever for one that ended with 0."""
    return _replaced(RankSilence, "is_over", lambda self, ends, signs, now_ms, **parts: False)


def _ended_part_unnoticed() -> contextlib.AbstractContextManager[None]:
    """Ranks may wait for ever for the part of their gang that ended with 0 on another node."""
    real = RankSilence.is_over

    def is_over(self: RankSilence, ends: RankEnds, signs: object, now_ms: int, *, ended_parts: int = 0) -> bool:
        return real(self, ends, signs, now_ms)

    return _replaced(RankSilence, "is_over", is_over)


@contextlib.contextmanager
def _lost_part_ends_no_other() -> Iterator[None]:
    """The parts of a gang on other nodes run on when one has failed or is lost."""
    real = attempts.stop

    def stop(state: Any, job: Any, after: AfterStop, *arguments: Any, **values: Any) -> None:
        if after is not AfterStop.GANG_ENDED:
            real(state, job, after, *arguments, **values)

    with _replaced(gang_attempts, "stop", stop):
        yield


def _gang_free_with_its_first_end() -> contextlib.AbstractContextManager[None]:
    """The GPUs of a gang across nodes are free when one of its parts has ended."""
    real = gang_attempts.end_part

    def end_part(state: Any, job: Any, event: Any, step: Any) -> Any:
        whole = real(state, job, event, step)
        return event if whole is None and event.node_id in job.live_node_ids else whole

    return _replaced(job_events, "end_part", end_part)


def _gang_half_started() -> contextlib.AbstractContextManager[None]:
    """The first rank alone is given the word to begin."""
    real = AttemptSupervisor._let_begin

    def let_begin(self: AttemptSupervisor, go: int) -> None:
        self._ranks, ranks = self._ranks[:1], self._ranks
        real(self, go)
        self._ranks = ranks

    return _replaced(AttemptSupervisor, "_let_begin", let_begin)


MUTANTS: Mapping[str, Mutant] = {
    "sender_check_skipped": _sender_check_skipped,
    "stale_fence_accepted": _stale_fence_accepted,
    "early_loss": _early_loss,
    "sleep_counts_nowhere": _sleep_counts_nowhere,
    "standstill_lets_run": _standstill_lets_run,
    "standstill_never_ends": _standstill_never_ends,
    "checkpoint_of_another_lineage": _checkpoint_of_another_lineage,
    "forged_checkpoint_accepted": _forged_checkpoint_accepted,
    "release_before_confirmed_end": _release_before_confirmed_end,
    "double_count_of_a_gpu": _double_count_of_a_gpu,
    "lost_wake_up": _lost_wake_up,
    "replay_without_a_record": _replay_without_a_record,
    "starts_right_after_a_restore": _starts_right_after_a_restore,
    "incarnation_dropped": _incarnation_dropped,
    "late_hello_believed": _late_hello_believed,
    "lease_renewed_by_a_dead_session": _lease_renewed_by_a_dead_session,
    "rank_end_ignored": _rank_end_ignored,
    "silent_ranks_unnoticed": _silent_ranks_unnoticed,
    "ended_part_unnoticed": _ended_part_unnoticed,
    "gang_half_started": _gang_half_started,
    "lost_part_ends_no_other": _lost_part_ends_no_other,
    "gang_free_with_its_first_end": _gang_free_with_its_first_end,
}
