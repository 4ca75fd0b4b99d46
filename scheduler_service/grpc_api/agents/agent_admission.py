"""Which agents may join, and which of their reports count: decided before anything is forgotten, stored or renewed.

The engine itself accepts every event, so that an old log replays as it was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_dials import AgentDials
from scheduler_service.adapters.agents.agent_messages import NO_SUCH_ATTEMPT, node_joined
from scheduler_service.adapters.agents.agent_refusals import Refusal
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Standstill
from scheduler_service.core.events import RunningAttempt
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Node, Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import (
    AttemptsMissingError,
    ForeignClusterError,
    GpuTakenError,
    LateHelloError,
    SecondInstanceError,
    StandstillError,
)
from scheduler_service.live_loop import LiveLoop

# A job that is still to start is ordered again; these may have a process that is not seen any more.
_WITH_PROCESS = (Phase.RUNNING, Phase.PAUSED, Phase.STOPPING)
_JOBS_NAMED_MAX = 5
# In one fact for the audit; a node runs far fewer, and what a hostile one invents must not fill the log twice.
UNKNOWN_ATTEMPTS_NOTED_MAX = 1_000
# Of an incarnation's id in messages: enough to distinguish, short enough to compare.
_ID_SHOWN = 8


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
    if job is not None and not (job.holds_gpus and (job.attempt, job.fence) == (key.attempt, key.fence)):
        job = None
    if job is not None and node_id in job.live_node_ids:
        return AttemptStanding.HELD
    holders = [name for *named, name in state.abandoned_attempts if named == [key.job_id, key.attempt, key.fence]]
    # Also of a gang that is still held elsewhere: its part here was lost, and told of itself afterwards.
    if node_id in holders:
        return AttemptStanding.GIVEN_UP
    if job is not None:
        return AttemptStanding.STALE if node_id in job.node_ids else AttemptStanding.FOREIGN
    return AttemptStanding.FOREIGN if holders else AttemptStanding.STALE


class AgentAdmission:
    """The checks between what agents send and what the scheduler does with it.

    Args:
        lease_ms: An agent that was heard within it lives.
        identity: Which cluster this is.
        standstill: Whether the scheduler acts; an agent may have seen more than its state knows.
    """

    def __init__(
        self,
        *,
        loop: LiveLoop,
        sessions: AgentSessions,
        leases: NodeLeases,
        lease_ms: int,
        identity: ClusterIdentity,
        standstill: Standstill,
    ) -> None:
        self._loop = loop
        self._identity = identity
        self._standstill = standstill
        self._sessions = sessions
        self._leases = leases
        self._lease_ms = lease_ms
        self._said_to_run: set[tuple[str, str, int, int]] = set()
        self._dials = AgentDials()

    def standing(self, node_id: str, key: node_agent_pb2.AttemptKey) -> AttemptStanding:
        """Return what an attempt is to the node that reports it; another node's is counted and logged."""
        if not self._identity.owns(key):
            # The same job, attempt and fence of another incarnation are another attempt.
            return self._standing_of_replaced(node_id, key)
        standing = standing_of(self._loop.engine.state, key, node_id)
        if standing is AttemptStanding.FOREIGN:
            self._refuse(node_id, Refusal.FOREIGN_ATTEMPT, job_id=key.job_id, attempt=key.attempt)
        return standing

    def _standing_of_replaced(self, node_id: str, key: node_agent_pb2.AttemptKey) -> AttemptStanding:
        """Return what an attempt of a state that a restore replaced is: its end frees what the node said it held."""
        found = self._loop.engine.state.abandoned_attempts.get((key.job_id, key.attempt, key.fence, node_id))
        is_given_up = found is not None and found.incarnation_id == key.incarnation_id
        return AttemptStanding.GIVEN_UP if is_given_up else AttemptStanding.STALE

    def is_awaited(self, node_id: str, key: node_agent_pb2.AttemptKey) -> bool:
        """Return whether an attempt was ordered to be prepared on that node; other reports are stale."""
        job = self._loop.engine.state.jobs.get(key.job_id)
        if job is None or job.moves.preparation is None or not self._identity.owns(key):
            return False
        if node_id not in job.moves.preparation.nodes(job.node_ids):
            return False
        return (job.moves.preparation.attempt, job.moves.preparation.fence) == (key.attempt, key.fence)

    def overtook_its_launch(self, refused: node_agent_pb2.CommandRefused) -> bool:
        """Return whether a node does not know an attempt yet, because an order about its pause came first.

        A launch whose stream has broken is repeated when the node's Hello is stored; other orders may be sent before.
        """
        job = self._loop.engine.state.jobs.get(refused.key.job_id)
        return refused.code == NO_SUCH_ATTEMPT and job is not None and job.phase is Phase.STARTING

    def admit(self, hello: node_agent_pb2.Hello) -> Sequence[str]:
        """Let an agent in, without its Hello's entries about other nodes' attempts and GPUs.

        Returns:
            The lost nodes whose GPUs it brings: a node with another name now, or the former place of a card.

        Raises:
            StandstillError: The scheduler gives no orders.
            ForeignClusterError: The node belongs to another cluster.
            GpuTakenError: Another node that may still live has one of its GPUs.
            SecondInstanceError: Another living agent speaks for this node.
            LateHelloError: The same agent, or a later boot of its machine, has said a later Hello.
            AttemptsMissingError: The node may run what this agent does not know.
        """
        self._check_cluster(hello)
        self._check_order(hello)
        self._check_settled(hello)
        replaced = self._replaced_nodes(hello)
        silent_ms = self._silent_ms_of_another(hello)
        if silent_ms is not None and hello.instance_id:
            raise self._second_instance(hello.node_id, silent_ms)
        own_gpu_ids = {gpu.gpu_id for gpu in hello.gpus}
        own = [
            status
            for status in hello.attempts
            if self.standing(hello.node_id, status.key) is not AttemptStanding.FOREIGN
            and not self._is_taken(status.key)
        ]
        self._check_attempts(hello, own)
        self._dials.note(hello)
        for status in own:
            self.note_running(hello.node_id, status.key)
        if silent_ms is not None:
            # An older agent, which may be the one of the open stream: that is unknown.
            self._refuse(hello.node_id, Refusal.UNNAMED_INSTANCE)
        for status in own:
            status.gpu_ids[:] = [gpu_id for gpu_id in status.gpu_ids if gpu_id in own_gpu_ids]
        without_foreign = node_agent_pb2.Hello(attempts=own)
        hello.ClearField("attempts")
        hello.MergeFrom(without_foreign)
        return replaced

    def note_running(self, node_id: str, key: node_agent_pb2.AttemptKey) -> None:
        """Remember that a node says to run an attempt: while the disk is slow the state does not know it yet."""
        self._said_to_run = {one for one in self._said_to_run if self._is_starting(*one)}
        told = (node_id, key.job_id, key.attempt, key.fence)
        if self._is_starting(*told):
            self._said_to_run.add(told)

    def _is_starting(self, node_id: str, job_id: str, attempt: int, fence: int) -> bool:
        job = self._loop.engine.state.jobs.get(job_id)
        is_same = job is not None and (job.attempt, job.fence) == (attempt, fence) and node_id in job.live_node_ids
        return is_same and job is not None and job.phase is Phase.STARTING

    def unknown_attempts(self, hello: node_agent_pb2.Hello) -> Sequence[RunningAttempt]:
        """Return what a node that was let in still runs by order of an earlier incarnation, unknown to this state."""
        unknown = {
            (status.key.job_id, status.key.attempt, status.key.fence)
            for status in hello.attempts
            if self._identity.is_ancestors(status.key.incarnation_id, fence=status.key.fence)
            and self.standing(hello.node_id, status.key) is AttemptStanding.STALE
        }
        running = node_joined(hello).attempts if unknown else ()
        found = [one for one in running if (one.job_id, one.attempt, one.fence) in unknown]
        return tuple(found[:UNKNOWN_ATTEMPTS_NOTED_MAX])

    def _replaced_nodes(self, hello: node_agent_pb2.Hello) -> Sequence[str]:
        """Return the lost nodes that have GPUs of this one."""
        state, now_ms = self._loop.engine.state, self._loop.clock.now_ms()
        owners = {gpu.gpu_id: state.gpus[gpu.gpu_id].node_id for gpu in hello.gpus if gpu.gpu_id in state.gpus}
        others = {owner: gpu_id for gpu_id, owner in owners.items() if owner != hello.node_id}
        for owner, gpu_id in others.items():
            is_heard = owner in self._sessions.connected
            wait_ms = self._leases.remaining_ms(owner, now_ms=now_ms)
            if is_heard or wait_ms or state.occupancy.jobs_on_node(owner):
                held = "which is heard" if is_heard else f"which may run jobs for {-(-wait_ms // 1000)} s more"
                raise GpuTakenError(
                    f"GPU {gpu_id} belongs to node {owner}, {held}. If this machine was renamed, or the card moved, "
                    f"stop the agent of {owner} and wait, or give the node up at once: `cotenant nodes forget {owner}`"
                )
        return sorted(others)

    def _check_order(self, hello: node_agent_pb2.Hello) -> None:
        """Refuse what an agent said before it dialed anew, or before its machine was booted again.

        Its node may have begun something in between. A machine that was set back to an earlier boot is let in as soon
        as nothing can run there any more.
        """
        node_id, newest = hello.node_id, self._dials.newest_of(hello)
        if hello.dial_number and hello.dial_number <= newest:
            self._refuse(node_id, Refusal.LATE_HELLO)
            raise LateHelloError(
                f"this Hello of node {node_id} is number {hello.dial_number} of its agent, and number {newest} came "
                "before it: what it says may be over. A living agent dials again by itself"
            )
        wait_ms = self._leases.remaining_ms(node_id, now_ms=self._loop.clock.now_ms())
        if wait_ms and self._dials.is_of_former_boot(hello):
            self._refuse(node_id, Refusal.LATE_HELLO, wait_ms=wait_ms)
            raise LateHelloError(
                f"node {node_id} was booted again after this Hello, and may run what it does not know. If the machine "
                f"was set back to a snapshot, its agent is let in in {-(-wait_ms // 1000)} s, or after a boot"
            )

    def _check_cluster(self, hello: node_agent_pb2.Hello) -> None:
        """Compare what a node saw of its cluster with what this state knows of itself."""
        seen, identity = hello.seen, self._identity
        if seen.incarnation_id and seen.incarnation_id == identity.incarnation_id:
            self._check_history(hello.node_id, seen)
        if self._standstill.code:
            raise StandstillError(self._standstill.message)
        is_own = seen.incarnation_id in {"", identity.incarnation_id, *identity.ancestor_ids}
        if is_own:
            return
        if hello.may_change_incarnation:
            hello.ClearField("attempts")
            return
        self._refuse(hello.node_id, Refusal.FOREIGN_CLUSTER, incarnation_id=seen.incarnation_id)
        raise ForeignClusterError(
            f"node {hello.node_id} belongs to cluster {seen.incarnation_id[:_ID_SHOWN]}, and this scheduler serves "
            f"{identity.incarnation_id[:_ID_SHOWN]}: a new or another state. Start the scheduler on the node's own "
            "state, or restore its backup there; to move the node for good stop its agent, then "
            "`python -m cotenant_agent leave-cluster --state-dir DIRECTORY` on the node"
        )

    def _check_settled(self, hello: node_agent_pb2.Hello) -> None:
        """Let an agent without a past wait after a restore: its node may run what this state never knew of."""
        wait_ms = self._loop.engine.state.settled_at_ms - self._loop.clock.now_ms()
        if hello.seen.incarnation_id or wait_ms <= 0:
            return
        self._refuse(hello.node_id, Refusal.ATTEMPTS_MISSING, jobs=0, wait_ms=wait_ms)
        raise AttemptsMissingError(
            f"node {hello.node_id} knows of no cluster, and this one was restored from a backup: until the leases of "
            f"before are over the node may run what neither knows of. Join again in {-(-wait_ms // 1000)} s, or start "
            "the agent with the --state-dir that this node had",
            retry_ms=wait_ms,
        )

    def _check_history(self, node_id: str, seen: node_agent_pb2.LogPosition) -> None:
        finding = self._identity.contradiction(seen, sequence=self._loop.sequence)
        if not finding:
            return
        if self._identity.is_sealed(seen):
            self._standstill.fall_behind(finding)
            return
        self._refuse(node_id, Refusal.FOREIGN_CLUSTER, finding=finding)
        raise ForeignClusterError(
            f"node {node_id} claims to have seen what no scheduler of this cluster ever said ({finding}): its state "
            "directory was altered. Stop its agent, then `python -m cotenant_agent leave-cluster --state-dir DIRECTORY`"
        )

    def _is_taken(self, key: node_agent_pb2.AttemptKey) -> bool:
        """Return whether an attempt of another incarnation has the numbers of one that is held here."""
        job = self._loop.engine.state.jobs.get(key.job_id)
        is_same = job is not None and job.holds_gpus and (job.attempt, job.fence) == (key.attempt, key.fence)
        return is_same and not self._identity.owns(key)

    def _silent_ms_of_another(self, hello: node_agent_pb2.Hello) -> int | None:
        """Return how long ago another living agent of the node was heard; None = there is none."""
        present = self._sessions.connected.get(hello.node_id)
        if present is None or present.closed.is_set() or present.is_of(hello.instance_id, hello.session_secret):
            return None
        silent_ms = self._loop.clock.now_ms() - present.last_heard_at_ms
        return silent_ms if silent_ms <= self._lease_ms else None

    def _second_instance(self, node_id: str, silent_ms: int) -> SecondInstanceError:
        self._refuse(node_id, Refusal.SECOND_INSTANCE)
        return SecondInstanceError(
            f"another agent speaks for node {node_id} and was heard {silent_ms / 1000:.1f} s ago: stop it, or "
            f"give one of the two another --node-id; {self._lease_ms / 1000:g} s after its last word the name is free"
        )

    def _check_attempts(self, hello: node_agent_pb2.Hello, listed: Sequence[node_agent_pb2.AttemptStatus]) -> None:
        state, node_id = self._loop.engine.state, hello.node_id
        place = _place_of(state.nodes.get(node_id), hello)
        held = [state.jobs[job_id] for job_id in state.occupancy.jobs_on_node(node_id)]
        # What was ordered may have started where the node was; an agent that is elsewhere would start it again.
        phases = (*_WITH_PROCESS, Phase.STARTING) if place in _ELSEWHERE else _WITH_PROCESS
        missing = [
            job.job_id
            for job in held
            if node_id in _nodes_with_process(job, phases)
            or (node_id, job.job_id, job.attempt, job.fence) in self._said_to_run
        ]
        if place in _ELSEWHERE:
            missing += [one.job_id for one in state.abandoned_attempts.values() if one.node_id == node_id]
        known = {one.key.job_id for one in listed if self.standing(node_id, one.key) is AttemptStanding.HELD}
        is_vouched = not known.isdisjoint(missing) and place not in _ELSEWHERE
        if not missing or is_vouched or place is NodePlace.REBOOTED:
            return
        wait_ms = max(1_000, self._leases.remaining_ms(node_id, now_ms=self._loop.clock.now_ms()))
        self._refuse(node_id, Refusal.ATTEMPTS_MISSING, jobs=len(missing), wait_ms=wait_ms)
        raise AttemptsMissingError(
            f"node {node_id} was given {_named(missing)} to run, {_FINDINGS[place]}: it may run on "
            f"until its lease is over. Join again in {-(-wait_ms // 1000)} s, or start the agent with the --state-dir "
            "that this node had",
            retry_ms=wait_ms,
        )

    def _refuse(self, node_id: str, refusal: Refusal, **facts: object) -> None:
        self._sessions.refusals.note(node_id, refusal, now_ms=self._loop.clock.now_ms(), **facts)


def _nodes_with_process(job: JobRecord, phases: Sequence[Phase]) -> Sequence[str]:
    """Return the nodes where an attempt may run: of a gang that is starting those that have said so."""
    if job.phase in phases:
        return job.live_node_ids
    return job.gang.started_node_ids if job.gang is not None and job.phase is Phase.STARTING else ()


class NodePlace(Enum):
    """Where an agent runs, compared with the one that spoke for its node before.

    UNKNOWN: Nothing distinguishes them. OTHER_FOLDER: Another state directory, or a copy. OTHER_BOOT: A boot with
    other devices: an image of the machine, or cards were changed. REBOOTED: The same in all but the boot.
    """

    UNKNOWN = auto()
    OTHER_MACHINE = auto()
    OTHER_FOLDER = auto()
    OTHER_BOOT = auto()
    REBOOTED = auto()


_FINDINGS = {
    NodePlace.UNKNOWN: "and this agent knows nothing of that",
    NodePlace.OTHER_MACHINE: "on another machine than this agent's",
    NodePlace.OTHER_FOLDER: "out of another state directory than this agent's, which may be a copy",
    NodePlace.OTHER_BOOT: "on a machine with other devices than this agent's",
    NodePlace.REBOOTED: "before a reboot",
}
# There the processes of the agent before are not seen, whatever a copy of its folder says of them.
_ELSEWHERE = frozenset({NodePlace.OTHER_MACHINE, NodePlace.OTHER_FOLDER, NodePlace.OTHER_BOOT})


def _place_of(known: Node | None, hello: node_agent_pb2.Hello) -> NodePlace:
    """Return whether what ran on a node certainly ended with a reboot, or may run where this agent is not.

    A copied machine has the same ids as its original, and a state directory may be moved: all must agree.
    """
    if known is None:
        return NodePlace.UNKNOWN
    if known.machine_id and hello.machine_id and known.machine_id != hello.machine_id:
        return NodePlace.OTHER_MACHINE
    if known.installation_id and known.installation_id != hello.installation_id:
        return NodePlace.OTHER_FOLDER
    is_stated = all((known.machine_id, hello.machine_id, known.installation_id, known.boot_id, hello.boot_id))
    if not is_stated or known.boot_id == hello.boot_id:
        return NodePlace.UNKNOWN
    same_gpus = {gpu.gpu_id for gpu in known.gpus} == {gpu.gpu_id for gpu in hello.gpus}
    return NodePlace.REBOOTED if same_gpus else NodePlace.OTHER_BOOT


def _named(job_ids: Sequence[str]) -> str:
    more = len(job_ids) - _JOBS_NAMED_MAX
    return ", ".join(job_ids[:_JOBS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
