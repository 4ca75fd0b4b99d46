"""Which agents may join, and which of their reports count: decided before anything is forgotten, stored or renewed.

The engine itself accepts every event, so that an old log replays as it was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agent_messages import NO_SUCH_ATTEMPT
from scheduler_service.adapters.agent_refusals import Refusal
from scheduler_service.adapters.agent_sessions import AgentSessions
from scheduler_service.adapters.node_leases import NodeLeases
from scheduler_service.core.records import Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import AttemptsMissingError, SecondInstanceError
from scheduler_service.live_loop import LiveLoop

# A job that is still to start is ordered again; these may have a process that is not seen any more.
_WITH_PROCESS = (Phase.RUNNING, Phase.PAUSED, Phase.STOPPING)
_JOBS_NAMED_MAX = 5


class AttemptStanding(Enum):
    """What an attempt is to the node that reports it.

    HELD: it runs there by order. GIVEN_UP: not wanted, but it takes the node's GPUs until its end is reported.
    STALE: no node holds it, and none will. FOREIGN: another node holds it or has it still to end.
    """

    HELD = auto()
    GIVEN_UP = auto()
    STALE = auto()
    FOREIGN = auto()


def standing_of(state: ClusterState, key: node_agent_pb2.AttemptKey, node_id: str) -> AttemptStanding:
    """Return what an attempt is to a node at present; the holder of a given attempt never changes."""
    job = state.jobs.get(key.job_id)
    if job is not None and job.holds_gpus and (job.attempt, job.fence) == (key.attempt, key.fence):
        return AttemptStanding.HELD if node_id in job.node_ids else AttemptStanding.FOREIGN
    abandoned = state.abandoned_attempts.get((key.job_id, key.attempt, key.fence))
    if abandoned is None:
        return AttemptStanding.STALE
    return AttemptStanding.GIVEN_UP if abandoned.node_id == node_id else AttemptStanding.FOREIGN


class AgentAdmission:
    """The checks between what agents send and what the scheduler does with it.

    Args:
        lease_ms: An agent that was heard within it lives.
    """

    def __init__(self, *, loop: LiveLoop, sessions: AgentSessions, leases: NodeLeases, lease_ms: int) -> None:
        self._loop = loop
        self._sessions = sessions
        self._leases = leases
        self._lease_ms = lease_ms

    def standing(self, node_id: str, key: node_agent_pb2.AttemptKey) -> AttemptStanding:
        """Return what an attempt is to the node that reports it; another node's is counted and logged."""
        standing = standing_of(self._loop.engine.state, key, node_id)
        if standing is AttemptStanding.FOREIGN:
            self._refuse(node_id, Refusal.FOREIGN_ATTEMPT, job_id=key.job_id, attempt=key.attempt)
        return standing

    def overtook_its_launch(self, refused: node_agent_pb2.CommandRefused) -> bool:
        """Return whether a node does not know an attempt yet, because an order about its pause came first.

        A launch whose stream has broken is repeated when the node's Hello is stored; other orders may be sent before.
        """
        job = self._loop.engine.state.jobs.get(refused.key.job_id)
        return refused.code == NO_SUCH_ATTEMPT and job is not None and job.phase is Phase.STARTING

    def admit(self, hello: node_agent_pb2.Hello) -> None:
        """Let an agent in, without its Hello's entries about other nodes' attempts and GPUs.

        Raises:
            SecondInstanceError: Another living agent speaks for this node.
            AttemptsMissingError: The node may run what this agent does not know.
        """
        silent_ms = self._silent_ms_of_another(hello)
        if silent_ms is not None and hello.instance_id:
            raise self._second_instance(hello.node_id, silent_ms)
        own_gpu_ids = {gpu.gpu_id for gpu in hello.gpus}
        own = [
            status
            for status in hello.attempts
            if self.standing(hello.node_id, status.key) is not AttemptStanding.FOREIGN
        ]
        self._check_attempts(hello.node_id, own)
        if silent_ms is not None:
            # An older agent, which may be the one of the open stream: that is unknown.
            self._refuse(hello.node_id, Refusal.UNNAMED_INSTANCE)
        for status in own:
            status.gpu_ids[:] = [gpu_id for gpu_id in status.gpu_ids if gpu_id in own_gpu_ids]
        without_foreign = node_agent_pb2.Hello(attempts=own)
        hello.ClearField("attempts")
        hello.MergeFrom(without_foreign)

    def _silent_ms_of_another(self, hello: node_agent_pb2.Hello) -> int | None:
        """Return how long ago another living agent of the node was heard; None = there is none."""
        present = self._sessions.connected.get(hello.node_id)
        if present is None or present.closed.is_set() or hello.instance_id == present.instance_id:
            return None
        silent_ms = self._loop.clock.now_ms() - present.last_heard_at_ms
        return silent_ms if silent_ms <= self._lease_ms else None

    def _second_instance(self, node_id: str, silent_ms: int) -> SecondInstanceError:
        self._refuse(node_id, Refusal.SECOND_INSTANCE)
        return SecondInstanceError(
            f"another agent speaks for node {node_id} and was heard {silent_ms / 1000:.1f} s ago: stop it, or "
            f"give one of the two another --node-id; {self._lease_ms / 1000:g} s after its last word the name is free"
        )

    def _check_attempts(self, node_id: str, listed: Sequence[node_agent_pb2.AttemptStatus]) -> None:
        state = self._loop.engine.state
        held = [state.jobs[job_id] for job_id in state.occupancy.jobs_on_node(node_id)]
        missing = [job.job_id for job in held if job.phase in _WITH_PROCESS and node_id in job.node_ids]
        known = {one.key.job_id for one in listed if standing_of(state, one.key, node_id) is AttemptStanding.HELD}
        if not missing or not known.isdisjoint(missing):
            return
        wait_ms = max(1_000, self._leases.remaining_ms(node_id, now_ms=self._loop.clock.now_ms()))
        self._refuse(node_id, Refusal.ATTEMPTS_MISSING, jobs=len(missing), wait_ms=wait_ms)
        raise AttemptsMissingError(
            f"node {node_id} was given {_named(missing)} to run, and this agent knows nothing of that: it may run on "
            f"until its lease is over. Join again in {-(-wait_ms // 1000)} s, or start the agent with the --state-dir "
            "that this node had",
            retry_ms=wait_ms,
        )

    def _refuse(self, node_id: str, refusal: Refusal, **facts: object) -> None:
        self._sessions.refusals.note(node_id, refusal, now_ms=self._loop.clock.now_ms(), **facts)


def _named(job_ids: Sequence[str]) -> str:
    more = len(job_ids) - _JOBS_NAMED_MAX
    return ", ".join(job_ids[:_JOBS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
