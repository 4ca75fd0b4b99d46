"""Streams of agents to the scheduler's servicer inside one event loop, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service import policy_registry
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.measurement_window_relay import MeasurementWindowRelay
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.agents.progress_reports import ProgressReports
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Standstill
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import JobSubmitted, TimerFired
from scheduler_service.core.records import JobRequest
from scheduler_service.grpc_api.agents.node_agent_servicer import LeaseTimes, NodeAgentServicer
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.live_loop import LiveLoop

LEASE_MS = 30_000
GIB = 2**30


def starting_engine() -> SchedulerEngine:
    """An engine that starts jobs in the order of their arrival."""
    return SchedulerEngine(make_policy=policy_registry.make_policy, policy="fifo")


def key(job_id: str = "job-1", attempt: int = 1, fence: int = 1) -> messages.AttemptKey:
    return messages.AttemptKey(job_id=job_id, attempt=attempt, fence=fence)


def status(
    which: messages.AttemptKey, state: messages.AttemptState.ValueType, *gpu_ids: str, exit_class: str = ""
) -> messages.AttemptStatus:
    """An attempt of a Hello."""
    exited = messages.AttemptExited(key=which, exit_class=exit_class) if exit_class else None
    return messages.AttemptStatus(key=which, state=state, gpu_ids=gpu_ids, exited=exited)


def hello(
    node_id: str, *attempts: messages.AttemptStatus, instance_id: str = "", gpus: Sequence[str] = ("0",)
) -> messages.Hello:
    """A node with GPUs called NODE-0 ..."""
    return messages.Hello(
        node_id=node_id,
        instance_id=instance_id,
        attempts=attempts,
        gpus=[
            messages.AgentGpu(gpu_id=f"{node_id}-{name}", device="d", memory_bytes=GIB, healthy=True) for name in gpus
        ],
    )


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must come true."""
    for _ in range(9_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within a minute and a half: {what}")


@dataclass
class AgentStream:
    """One agent's stream; `failure` is what ended it on the scheduler's side."""

    servicer: NodeAgentServicer
    heard: list[messages.ConnectResponse] = field(default_factory=list)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self._said: asyncio.Queue[messages.ConnectRequest | None] = asyncio.Queue()
        self._sequence = 0
        self._holding = asyncio.ensure_future(self._hold())

    def say(self, **message: Any) -> None:
        self._said.put_nowait(messages.ConnectRequest(**message))

    def hang_up(self) -> None:
        self._said.put_nowait(None)

    @property
    def has_ended(self) -> bool:
        return self._holding.done()

    @property
    def ends_stored(self) -> list[str]:
        return [one.attempt_end_stored.key.job_id for one in self.heard if one.HasField("attempt_end_stored")]

    async def beat(self, *observations: messages.AttemptObservation) -> list[str]:
        """Send a heartbeat and wait for its answer; whatever was said before has been taken by then."""
        self._sequence += 1
        self.say(heartbeat=messages.Heartbeat(sequence=self._sequence, attempts=observations))
        wanted = self._sequence

        def answers() -> list[messages.HeartbeatAck]:
            return [one.heartbeat_ack for one in self.heard if one.heartbeat_ack.sequence == wanted]

        await until(answers, "the answer to a heartbeat")
        return [renewed.job_id for renewed in answers()[0].renewed]

    async def _hold(self) -> None:
        try:
            async for message in self.servicer.Connect(self._saying(), cast("Context", None)):
                self.heard.append(message)
        except Exception as error:
            self.failure = error

    async def _saying(self) -> AsyncIterator[messages.ConnectRequest]:
        while (message := await self._said.get()) is not None:
            yield message


@dataclass
class Cluster:
    """A loop with the door for agents.

    Attributes:
        identity: Of the scheduler; by default it has none, as older ones.
    """

    loop: LiveLoop
    identity: ClusterIdentity = field(default_factory=ClusterIdentity)
    standstill: Standstill = field(default_factory=Standstill)

    def __post_init__(self) -> None:
        self.sessions = AgentSessions()
        self.progress = ProgressReports(interval_ms=0)
        self.leases = NodeLeases(lease_ms=LEASE_MS, grace_ms=0, margin_ratio=0)
        self.servicer = NodeAgentServicer(
            loop=self.loop,
            sessions=self.sessions,
            leases=self.leases,
            progress=self.progress,
            windows=MeasurementWindowRelay(None, deadline_s=1),
            times=LeaseTimes(heartbeat_ms=2_000, lease_ms=LEASE_MS, grace_ms=0),
            identity=self.identity,
            standstill=self.standstill,
        )

    async def dial(self, greeting: messages.Hello) -> AgentStream:
        """Let an agent in; returns once the engine knows it or admission has refused it."""
        stream = AgentStream(self.servicer)
        stream.say(hello=greeting)
        await until(lambda: stream.heard or stream.has_ended, "an answer to the Hello")
        if not stream.has_ended:
            await stream.beat()
        return stream

    async def submit(self, job_id: str = "job-1") -> None:
        """Hand a job in; it has been started by the return where a GPU was free."""
        await self.loop.tell(JobSubmitted(at_ms=0, request=JobRequest(job_id=job_id)))

    async def settle(self) -> None:
        """Wait until the facts that were reported so far are handled."""
        for _ in range(3):
            await asyncio.sleep(0)
            await self.loop.tell(TimerFired(at_ms=0))

    def phase(self, job_id: str = "job-1") -> str:
        return self.loop.engine.state.jobs[job_id].phase.value

    def node_of(self, job_id: str = "job-1") -> str:
        return self.loop.engine.state.jobs[job_id].node_ids[0]
