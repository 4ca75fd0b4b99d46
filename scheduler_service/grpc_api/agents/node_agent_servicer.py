"""The scheduler's end of the stream to a node agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from cotenant.access.callers import current_caller
from cotenant.access.roles import Role
from cotenant.v1 import node_agent_pb2, node_agent_pb2_grpc
from scheduler_service.adapters.agents import agent_messages, gang_messages
from scheduler_service.adapters.agents.agent_refusals import Refusal
from scheduler_service.adapters.agents.agent_sessions import AgentSession, AgentSessions
from scheduler_service.adapters.agents.launch_rules import RANK_PROCESSES, SERVER_PROCESSES, launch_rules
from scheduler_service.adapters.agents.measurement_window_relay import MeasurementWindowRelay
from scheduler_service.adapters.agents.memory_reports import memory_news
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.agents.progress_reports import ProgressReports
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Standstill
from scheduler_service.adapters.system_clock import read_boot_id, read_wall_ms
from scheduler_service.core.events import (
    Actor,
    AttemptReport,
    NodeDisconnected,
    NodeForgotten,
    NodeLost,
    PartReport,
    UnknownAttemptsFound,
)
from scheduler_service.core.gangs.gang_pauses import is_part_paused
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import AgentProtocolError
from scheduler_service.grpc_api.agents.agent_admission import AgentAdmission, AttemptStanding
from scheduler_service.grpc_api.agents.checkpoint_relay import CheckpointRelay
from scheduler_service.grpc_api.agents.hello_checks import (
    certificate_names,
    certificate_validity,
    check_caller,
    check_certificate,
    check_hello,
)
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.live_loop import LiveLoop

_log = logging.getLogger(__name__)

# Facts of all agents on their way to the log; beyond it agents are no longer listened to.
FACTS_WAITING_MAX = 5_000
# Messages with which a lease begins or goes on.
_RENEWING = frozenset({"welcome", "launch_job", "heartbeat_ack"})
# Attempts whose end changes something: the job's, or the GPUs that they still take.
_ENDING = (AttemptStanding.HELD, AttemptStanding.GIVEN_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Settings of heartbeats and leases that agents receive."""

    heartbeat_ms: int
    lease_ms: int
    grace_ms: int


class NodeAgentServicer(node_agent_pb2_grpc.NodeAgentServiceServicer):
    """Turns what agents report into facts and sends them what the engine orders.

    Args:
        certificates_required: The node id must then be a name of the agent's certificate.
        is_final: Returns for a node's refusal whether asking again, or another node, is useless.
        identity: Which cluster this is; None = one without a state of its own.
        standstill: Whether the scheduler acts; None = always.
    """

    def __init__(
        self,
        *,
        loop: LiveLoop,
        sessions: AgentSessions,
        leases: NodeLeases,
        progress: ProgressReports,
        windows: MeasurementWindowRelay,
        times: LeaseTimes,
        certificates_required: bool = False,
        is_final: Callable[[ClusterState, str, node_agent_pb2.CommandRefused], bool] = lambda *_: False,
        identity: ClusterIdentity | None = None,
        standstill: Standstill | None = None,
    ) -> None:
        self._loop = loop
        self._sessions = sessions
        self._leases = leases
        self._progress = progress
        self._windows = windows
        self._times = times
        self._certificates_required = certificates_required
        self._identity = identity or ClusterIdentity()
        self._standstill = standstill or Standstill()
        self._admission = AgentAdmission(
            loop=loop,
            sessions=sessions,
            leases=leases,
            lease_ms=times.lease_ms,
            identity=self._identity,
            standstill=self._standstill,
        )
        self._is_final = is_final
        self._boot_id = read_boot_id()
        self._checkpoints = CheckpointRelay(loop=loop, sessions=sessions, identity=self._identity)
        self._telling: set[asyncio.Future[None]] = set()

    async def Connect(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[node_agent_pb2.ConnectRequest], context: Context
    ) -> AsyncIterator[node_agent_pb2.ConnectResponse]:
        """Serve one agent until either side ends the stream."""
        hello = await self._first_message(request_iterator, context)
        replaced = self._admission.admit(hello)
        session = self._sessions.open(
            hello.node_id,
            now_ms=self._loop.clock.now_ms(),
            no_profiles=hello.no_profiles,
            instance_id=hello.instance_id,
            launch_rules=launch_rules(hello),
            starts_ranks=RANK_PROCESSES in hello.enforcements,
            starts_servers=SERVER_PROCESSES in hello.enforcements,
            presented_secret=hello.session_secret,
            knows_secret=hello.HasField("seen"),
        )
        if self._certificates_required:
            session.certificate = certificate_validity(context)
        session.send(node_agent_pb2.ConnectResponse(welcome=self._welcome(session, hello.boot_id)))
        receiving = asyncio.ensure_future(self._receive(session, hello, request_iterator, replaced))
        try:
            async for message in _outbound(session, receiving):
                yield message
                if message.WhichOneof("message") in _RENEWING:
                    # Only now: what was not sent renews nothing.
                    self._leases.renew(session.node_id, now_ms=self._loop.clock.now_ms())
            if receiving.done():
                receiving.result()
        finally:
            receiving.cancel()
            if self._sessions.end(session):
                self._loop.note(NodeDisconnected(at_ms=0, node_id=session.node_id))

    async def FetchCheckpoint(  # noqa: N802 - the contract's name
        self, request: node_agent_pb2.FetchCheckpointRequest, context: Context
    ) -> AsyncIterator[node_agent_pb2.FetchCheckpointResponse]:
        """Pass on a checkpoint that another node has."""
        async with aclosing(self._checkpoints.fetch(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def SendCheckpointPiece(  # noqa: N802 - the contract's name
        self, request: node_agent_pb2.SendCheckpointPieceRequest, context: Context
    ) -> node_agent_pb2.SendCheckpointPieceResponse:
        """Take a piece of a checkpoint that a node was ordered to send."""
        return await self._checkpoints.take(request)

    def _welcome(self, session: AgentSession, boot_id: str) -> node_agent_pb2.Welcome:
        return node_agent_pb2.Welcome(
            heartbeat_ms=self._times.heartbeat_ms,
            lease_ms=self._times.lease_ms,
            grace_ms=self._times.grace_ms,
            position=self._identity.position(self._loop.sequence),
            ancestor_ids=sorted(self._identity.ancestor_ids),
            session_secret=session.secret,
            same_boot=boot_id != "" and boot_id == self._boot_id,
        )

    async def _first_message(
        self, messages: AsyncIterator[node_agent_pb2.ConnectRequest], context: Context
    ) -> node_agent_pb2.Hello:
        message = await anext(aiter(messages), None)
        if message is None or not message.HasField("hello"):
            raise AgentProtocolError("the first message of an agent must be a Hello")
        hello = message.hello
        check_hello(hello)
        check_caller(hello.node_id, current_caller())
        if self._certificates_required:
            check_certificate(hello.node_id, certificate_names(context))
        return hello

    async def _receive(
        self,
        session: AgentSession,
        hello: node_agent_pb2.Hello,
        messages: AsyncIterator[node_agent_pb2.ConnectRequest],
        replaced: Sequence[str],
    ) -> None:
        for node_id in replaced:
            self._loop.note(NodeForgotten(at_ms=0, node_id=node_id, actor=Actor(role=Role.SCHEDULER)))
        if unknown := tuple(self._admission.unknown_attempts(hello)):
            by = Actor(role=Role.SCHEDULER)
            self._loop.note(UnknownAttemptsFound(at_ms=0, node_id=session.node_id, attempts=unknown, actor=by))
        # Ends first: an attempt that the node no longer runs must not look lost.
        ends = [self._tell_end(session, exited) for exited in agent_messages.ended_attempts(hello)]
        await asyncio.gather(*ends, self._loop.tell(agent_messages.node_joined(hello)))
        async for message in messages:
            if not self._sessions.holds(session):
                # Its agent, or the holder of its stream, speaks for the node no more.
                self._note_ended(session)
                return
            session.last_heard_at_ms, session.has_reported = self._loop.clock.now_ms(), True
            await self._take(session, message)

    def _note_ended(self, session: AgentSession) -> None:
        """Count a report that came over a stream which another one has replaced; one that is ending is no news."""
        if self._sessions.connected.get(session.node_id) not in (None, session):
            now_ms = self._loop.clock.now_ms()
            self._sessions.refusals.note(session.node_id, Refusal.ENDED_SESSION, now_ms=now_ms)

    async def _take(self, session: AgentSession, message: node_agent_pb2.ConnectRequest) -> None:
        match message.WhichOneof("message"):
            case "heartbeat":
                self._take_heartbeat(session, message.heartbeat)
            case "attempt_started":
                started = message.attempt_started
                if self._admission.standing(session.node_id, started.key) is AttemptStanding.HELD:
                    self._admission.note_running(session.node_id, started.key)
                    fact = replace(agent_messages.attempt_started(started), node_id=session.node_id)
                    await self._tell_later(self._loop.tell(fact))
            case "attempt_exited":
                await self._tell_later(self._tell_end(session, message.attempt_exited))
            case "command_refused":
                refused = message.command_refused
                standing = self._admission.standing(session.node_id, refused.key)
                if standing in _ENDING and not self._admission.overtook_its_launch(refused):
                    is_final = self._is_final(self._loop.engine.state, session.node_id, refused)
                    refusal = agent_messages.command_refused(refused, is_final=is_final)
                    await self._tell_later(self._loop.tell(_of_node(refusal, session)))
            case "attempt_prepared" | "preparation_ended" as kind:
                if self._admission.is_awaited(session.node_id, getattr(message, kind).key):
                    change = agent_messages.preparation_change(message)
                    await self._tell_later(self._loop.tell(replace(change, node_id=session.node_id)))
            case "log_chunk":
                self._sessions.take_log_chunk(session.node_id, message.log_chunk)
            case other:
                raise AgentProtocolError(f"unexpected message {other or 'without content'} after the Hello")

    async def _tell_later(self, telling: Coroutine[Any, Any, None]) -> None:
        """Store a fact while heartbeats go on being answered: a disk that refuses must not end leases."""
        while len(self._telling) >= FACTS_WAITING_MAX:
            await asyncio.wait(self._telling, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(telling)
        self._telling.add(task)
        task.add_done_callback(self._told)

    def _told(self, task: asyncio.Future[None]) -> None:
        self._telling.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The agent keeps the end and repeats it in its next Hello.
            _log.warning("fact_not_stored", extra={"reason": str(task.exception())})

    async def _tell_end(self, session: AgentSession, exited: node_agent_pb2.AttemptExited) -> None:
        """Store the last progress and the end, then let the agent clean up; it keeps the end of another node's."""
        standing = self._admission.standing(session.node_id, exited.key)
        if standing is AttemptStanding.FOREIGN:
            return
        if standing in _ENDING:
            now_ms = self._loop.clock.now_ms()
            waiting = self._progress.forget(exited.key.job_id, exited.key.fence, now_ms=now_ms)
            if waiting is not None:
                self._loop.note(waiting)
            await self._loop.tell(_of_node(agent_messages.attempt_ended(exited), session))
        stored = node_agent_pb2.AttemptEndStored(key=exited.key)
        session.send(node_agent_pb2.ConnectResponse(attempt_end_stored=stored))

    def _take_heartbeat(self, session: AgentSession, heartbeat: node_agent_pb2.Heartbeat) -> None:
        """Answer at once, even while the disk refuses: a lease must not end because a log is full."""
        state, now_ms = self._loop.engine.state, self._loop.clock.now_ms()
        renewed = []
        for observation in heartbeat.attempts:
            if self._admission.standing(session.node_id, observation.key) is AttemptStanding.HELD:
                renewed.append(observation.key)
                self._note_pause(observation, session)
                # Progress is that of rank 0, and so of the first node of a gang.
                if state.jobs[observation.key.job_id].node_ids[0] == session.node_id:
                    self._progress.add(agent_messages.progress(observation), now_ms=now_ms)
                    memory = memory_news(state, observation)
                    if memory is not None and not self._loop.storage_failure:
                        self._loop.note(memory)
        session.observed_gpus = {observation.gpu_id: observation for observation in heartbeat.gpus}
        if heartbeat.wall_clock_ms:
            session.note_clock(heartbeat.wall_clock_ms - read_wall_ms())
        session.done_parts = gang_messages.done_parts(heartbeat)
        # While nothing can be stored the state stays as it is, and every heartbeat would report the same again.
        for gpu in heartbeat.gpus if not self._loop.storage_failure else ():
            view = state.gpus.get(gpu.gpu_id)
            if view is not None and view.node_id == session.node_id and view.gpu.healthy != gpu.healthy:
                self._loop.note(agent_messages.health_changed(gpu))
        if not session.no_profiles:
            self._windows.note(heartbeat.measurement_windows)
        ack = node_agent_pb2.HeartbeatAck(
            sequence=heartbeat.sequence,
            renewed=renewed,
            position=self._identity.position(self._loop.sequence),
            ended_parts=gang_messages.ended_parts(state.jobs, renewed, self._sessions.parts_done_elsewhere(session)),
        )
        session.send(node_agent_pb2.ConnectResponse(heartbeat_ack=ack))

    def _note_pause(self, observation: node_agent_pb2.AttemptObservation, session: AgentSession) -> None:
        """Pass on that what a node runs stands still or goes on, where that is news; heartbeats repeat it till then."""
        job = self._loop.engine.state.jobs[observation.key.job_id]
        is_believed_paused = is_part_paused(job, session.node_id)
        change = agent_messages.pause_change(observation, is_believed_paused=is_believed_paused)
        if change is not None and not self._loop.storage_failure:
            self._loop.note(_of_node(change, session))

    def tick(self) -> None:
        """Pass on what has waited long enough: progress, silent agents, lost nodes; called several times a second."""
        now_ms = self._loop.clock.now_ms()
        if self._standstill.code:
            self._stand_still(now_ms)
        # While nothing can be stored reports are merged where they wait, not heaped up before the log.
        for report in self._progress.due(now_ms=now_ms) if not self._loop.storage_failure else ():
            self._loop.note(report)
        self._sessions.close_silent(heard_before_ms=now_ms - self._times.lease_ms)
        for node_id in self._leases.lost(now_ms=now_ms):
            if node_id in self._sessions.connected:
                # It talks again: what ran there is known from its Hello.
                self._leases.renew(node_id, now_ms=now_ms)
            else:
                self._loop.note(NodeLost(at_ms=0, node_id=node_id))

    def _stand_still(self, now_ms: int) -> None:
        """Let no node join or be lost: what runs there may be another scheduler's, which renews it."""
        self._sessions.close_all()
        for node_id in self._loop.engine.state.nodes:
            self._leases.renew(node_id, now_ms=now_ms)


async def _outbound(
    session: AgentSession, receiving: asyncio.Future[None]
) -> AsyncIterator[node_agent_pb2.ConnectResponse]:
    """Yield what is queued for an agent until its session is closed or its own half of the stream has ended."""
    closing = asyncio.ensure_future(session.closed.wait())
    waiting: Sequence[asyncio.Future[Any]] = (closing,)
    try:
        while not (closing.done() or receiving.done()):
            taking = asyncio.ensure_future(session.outbound.get())
            waiting = (taking, closing, receiving)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                return
            yield taking.result()
    finally:
        # Also where the call is cancelled in the middle of the wait, as by an agent that hangs up.
        for one in waiting:
            if one is not receiving:
                one.cancel()


def _of_node(fact: AttemptReport, session: AgentSession) -> AttemptReport:
    """Name the node in what it says of its part of an attempt."""
    return replace(fact, node_id=session.node_id) if isinstance(fact, PartReport) else fact
