"""The agents that are connected now: what is to be sent to them, what they last sent, logs on their way."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from cotenant.access.certificate_fields import Validity
from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_refusals import AgentRefusals
from scheduler_service.adapters.agents.gang_messages import DoneParts
from scheduler_service.adapters.agents.launch_rules import LaunchRules
from scheduler_service.errors import NodeUnreachableError, OverloadedError

_log = logging.getLogger(__name__)

# An agent that does not take its orders any more is disconnected; it dials in again and is sent what matters.
OUTBOUND_MESSAGES_MAX = 1_000
ENDED_NODES_MAX = 10_000
"""Nodes that went away of which is known when they were last heard."""
LOG_READS_MAX = 32
# An agent sends a log as fast as it reads it; the reader behind us may be slower.
LOG_BYTES_WAITING_MAX = 32 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class AgentSession:
    """One connected agent; `closed` is set when its stream must end, `no_profiles` when it keeps what it measures.

    Attributes:
        instance_id: Of the agent's process; empty = not stated.
        launch_rules: What its node runs; None = not stated.
        starts_ranks: It starts jobs with ranks; an older agent would start one process instead.
        starts_servers: It starts parameter servers; an older agent would start the ranks alone, which wait for ever.
        secret: Drawn for this stream; only its agent learns it.
        presented_secret: That of the agent's stream before.
        knows_secret: The agent returns the secret of its last stream; older ones do not.
        has_reported: A message came after the Welcome, so the agent has the secret.
        certificate: When that of the agent is valid; None = it showed none.
        clock_ahead_ms: By how much its clock was ahead of this machine's lately; None = not said.
        done_parts: What has only parameter servers left there, as of its newest heartbeat.
    """

    node_id: str
    last_heard_at_ms: int
    no_profiles: bool = False
    instance_id: str = ""
    launch_rules: LaunchRules | None = None
    starts_ranks: bool = True
    starts_servers: bool = True
    secret: str = field(default_factory=lambda: uuid.uuid4().hex)
    presented_secret: str = ""
    knows_secret: bool = False
    has_reported: bool = False
    outbound: asyncio.Queue[node_agent_pb2.ConnectResponse] = field(
        default_factory=lambda: asyncio.Queue(OUTBOUND_MESSAGES_MAX)
    )
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    observed_gpus: Mapping[str, node_agent_pb2.GpuObservation] = field(default_factory=dict)
    certificate: Validity | None = None
    clock_ahead_ms: int | None = None
    done_parts: DoneParts = frozenset()
    _newest_ahead_ms: int | None = None

    def is_of(self, instance_id: str, secret: str) -> bool:
        """Return whether an agent that says this is the one of this stream.

        Until it has reported the Welcome may have been lost, and it knows the secret of its stream before only.
        """
        if instance_id != self.instance_id:
            return False
        known = hmac.compare_digest(secret.encode(), self.secret.encode())
        before = hmac.compare_digest(secret.encode(), self.presented_secret.encode())
        return known or not self.knows_secret or (before and not self.has_reported)

    def note_clock(self, ahead_ms: int) -> None:
        """Note what a heartbeat says of its clock.

        One that waited, as while a program or a machine stood still, makes the clock look behind, never ahead: of two
        in a row the larger counts.
        """
        before_ms, self._newest_ahead_ms = self._newest_ahead_ms, ahead_ms
        self.clock_ahead_ms = ahead_ms if before_ms is None else max(before_ms, ahead_ms)

    def send(self, message: node_agent_pb2.ConnectResponse) -> bool:
        """Queue a message; a full queue closes the session and returns False."""
        try:
            self.outbound.put_nowait(message)
        except asyncio.QueueFull:
            _log.error("agent_queue_full", extra={"node_id": self.node_id, "waiting": self.outbound.qsize()})
            self.closed.set()
            return False
        return True


@dataclass(slots=True, kw_only=True)
class LogRead:
    """A log on its way from an agent to a reader; None in `chunks` is the end."""

    read_id: str
    node_id: str
    chunks: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    waiting_bytes: int = 0
    failure: str = ""


class AgentSessions:
    """All connected agents by node; the newest stream of a node is the one that counts.

    Attributes:
        refusals: What was not let in, or did not count.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._ended_heard_at_ms: dict[str, int] = {}
        self._reads: dict[str, LogRead] = {}
        self._reads_started = 0
        self.refusals = AgentRefusals()

    @property
    def connected(self) -> Mapping[str, AgentSession]:
        """The present sessions by node id."""
        return self._sessions

    def open(
        self,
        node_id: str,
        *,
        now_ms: int,
        no_profiles: bool = False,
        instance_id: str = "",
        launch_rules: LaunchRules | None = None,
        starts_ranks: bool = True,
        starts_servers: bool = True,
        presented_secret: str = "",
        knows_secret: bool = False,
    ) -> AgentSession:
        """Start a session; an older one of the same node is closed."""
        previous = self._sessions.get(node_id)
        if previous is not None:
            previous.closed.set()
            self._end_reads(node_id)
        session = AgentSession(
            node_id=node_id,
            last_heard_at_ms=now_ms,
            no_profiles=no_profiles,
            instance_id=instance_id,
            launch_rules=launch_rules,
            starts_ranks=starts_ranks,
            starts_servers=starts_servers,
            presented_secret=presented_secret,
            knows_secret=knows_secret,
        )
        self._sessions[node_id] = session
        return session

    def parts_done_elsewhere(self, session: AgentSession) -> dict[str, DoneParts]:
        """Return what has only parameter servers left, by node other than that of a session."""
        others = (one for one in self._sessions.values() if one.node_id != session.node_id)
        return {one.node_id: one.done_parts for one in others if one.done_parts}

    def holds(self, session: AgentSession) -> bool:
        """Return whether a stream is the one that counts for its node."""
        return self._sessions.get(session.node_id) is session and not session.closed.is_set()

    def end(self, session: AgentSession) -> bool:
        """Forget a session; False when a newer one has taken its place."""
        if self._sessions.get(session.node_id) is not session:
            return False
        del self._sessions[session.node_id]
        self._end_reads(session.node_id)
        self._ended_heard_at_ms.pop(session.node_id, None)
        self._ended_heard_at_ms[session.node_id] = session.last_heard_at_ms
        if len(self._ended_heard_at_ms) > ENDED_NODES_MAX:
            del self._ended_heard_at_ms[next(iter(self._ended_heard_at_ms))]
        return True

    def heard_at_ms(self, node_id: str) -> int:
        """Return when a node was last heard, connected or not; 0 = not since this scheduler started."""
        session = self._sessions.get(node_id)
        return session.last_heard_at_ms if session is not None else self._ended_heard_at_ms.get(node_id, 0)

    def _end_reads(self, node_id: str) -> None:
        """End what was read over a stream that is gone: its agent has forgotten the orders with it."""
        for read in [read for read in self._reads.values() if read.node_id == node_id]:
            self._finish(read, failure="the node went away; read the log again when it is back")

    def close_all(self) -> None:
        """End every stream: the scheduler is stopping, and agents dial in again when it is back."""
        for session in self._sessions.values():
            session.closed.set()

    def close_silent(self, *, heard_before_ms: int) -> None:
        """Close the sessions that have been silent since an instant."""
        for session in self._sessions.values():
            if session.last_heard_at_ms < heard_before_ms and not session.closed.is_set():
                _log.warning("agent_silent", extra={"node_id": session.node_id})
                session.closed.set()

    def send(self, node_id: str, message: node_agent_pb2.ConnectResponse) -> bool:
        """Queue a message for a node; False when it is not connected (the engine repeats it when the node joins)."""
        session = self._sessions.get(node_id)
        return session is not None and session.send(message)

    async def read_log(
        self,
        node_id: str,
        key: node_agent_pb2.AttemptKey,
        *,
        follow: bool,
        tail_bytes: int,
        rank: int = 0,
        server: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield what a job printed, or one rank or parameter server of it.

        Raises:
            NodeUnreachableError: The node is not connected, goes away, or cannot read the log.
            OverloadedError: Too many logs are being read, or this reader is too slow.
        """
        if len(self._reads) >= LOG_READS_MAX:
            raise OverloadedError(f"{LOG_READS_MAX} logs are being read already; try again in a moment")
        self._reads_started += 1
        read = LogRead(read_id=f"read-{self._reads_started}", node_id=node_id)
        order = node_agent_pb2.ReadLog(
            read_id=read.read_id, key=key, follow=follow, tail_bytes=tail_bytes, rank=rank, server=server
        )
        self._reads[read.read_id] = read
        try:
            if not self.send(node_id, node_agent_pb2.ConnectResponse(read_log=order)):
                raise NodeUnreachableError(f"node {node_id} is not connected; its logs come back with it")
            while (chunk := await read.chunks.get()) is not None:
                read.waiting_bytes -= len(chunk)
                yield chunk
            if read.failure:
                raise NodeUnreachableError(read.failure)
        finally:
            if self._reads.pop(read.read_id, None) is not None:
                order.cancel = True
                self.send(node_id, node_agent_pb2.ConnectResponse(read_log=order))

    def take_log_chunk(self, node_id: str, chunk: node_agent_pb2.LogChunk) -> None:
        """Pass a piece of a log on to its reader; its reader may have gone, or wait for another node's."""
        read = self._reads.get(chunk.read_id)
        if read is None or read.node_id != node_id:
            return
        read.waiting_bytes += len(chunk.chunk)
        if read.waiting_bytes > LOG_BYTES_WAITING_MAX:
            self.send(read.node_id, node_agent_pb2.ConnectResponse(read_log=_cancellation(read)))
            self._finish(read, failure="the log came faster than it was read; ask for fewer bytes with tail_bytes")
            return
        if chunk.chunk:
            read.chunks.put_nowait(chunk.chunk)
        if chunk.end or chunk.error:
            self._finish(read, failure=chunk.error)

    def _finish(self, read: LogRead, *, failure: str) -> None:
        read.failure = failure
        read.chunks.put_nowait(None)
        self._reads.pop(read.read_id, None)


def _cancellation(read: LogRead) -> node_agent_pb2.ReadLog:
    return node_agent_pb2.ReadLog(read_id=read.read_id, cancel=True)
