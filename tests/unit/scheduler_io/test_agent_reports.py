"""What agents report goes on being reported while the disk refuses; what waits for the disk must stay bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.measurement_window_relay import MeasurementWindowRelay
from scheduler_service.adapters.agents.node_leases import NodeLeases
from scheduler_service.adapters.agents.progress_reports import ProgressReports
from scheduler_service.core.events import GpuHealthChanged, JobProgressed, NodeJoined
from scheduler_service.errors import AgentProtocolError
from scheduler_service.grpc_api.agents.node_agent_servicer import LeaseTimes, NodeAgentServicer
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.live_loop import LiveLoop
from tests.support.live_loop import FillingLog, run

HELLO = node_agent_pb2.Hello(
    node_id="node-1", gpus=[node_agent_pb2.AgentGpu(gpu_id="g", device="d", memory_bytes=1, healthy=True)]
)
SICK = node_agent_pb2.Heartbeat(gpus=[node_agent_pb2.GpuObservation(gpu_id="g", healthy=False, fault="Xid 79")])


def agents_of(loop: LiveLoop, progress: ProgressReports) -> NodeAgentServicer:
    return NodeAgentServicer(
        loop=loop,
        sessions=AgentSessions(),
        leases=NodeLeases(lease_ms=30_000, grace_ms=0, margin_ratio=0),
        progress=progress,
        windows=MeasurementWindowRelay(None, deadline_s=1),
        times=LeaseTimes(heartbeat_ms=2_000, lease_ms=30_000, grace_ms=0),
    )


async def until(condition: Callable[[], object]) -> None:
    for _ in range(9_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within a minute and a half")


def kinds(log: FillingLog) -> list[str]:
    return [type(stored.event).__name__ for stored in log.read_from(1)]


@pytest.mark.parametrize(
    "hello",
    [
        node_agent_pb2.Hello(node_id="a/b"),
        node_agent_pb2.Hello(node_id="n", gpus=[node_agent_pb2.AgentGpu(gpu_id="g", healthy=True)]),
        node_agent_pb2.Hello(node_id="n", gpus=[node_agent_pb2.AgentGpu(memory_bytes=1, healthy=True)]),
    ],
)
def test_a_node_that_cannot_be_is_refused(hello: node_agent_pb2.Hello) -> None:
    async def work(loop: LiveLoop) -> None:
        async def said() -> AsyncIterator[node_agent_pb2.ConnectRequest]:
            yield node_agent_pb2.ConnectRequest(hello=hello)

        with pytest.raises(AgentProtocolError):
            await anext(agents_of(loop, ProgressReports(interval_ms=0)).Connect(said(), cast("Context", None)))

    run(work, FillingLog())


def test_progress_waits_in_one_piece_while_the_disk_refuses() -> None:
    log = FillingLog()

    async def work(loop: LiveLoop) -> None:
        progress = ProgressReports(interval_ms=0)
        agents = agents_of(loop, progress)
        log.is_full = True
        for steps in range(1, 51):
            report = JobProgressed(at_ms=0, job_id="job-1", attempt=1, fence=1, steps_done=steps, window_steps=1)
            progress.add(report, now_ms=steps)
            agents.tick()
            await until(lambda: loop.storage_failure)
        log.is_full = False
        await until(lambda: not loop.storage_failure)
        agents.tick()

    run(work, log)
    reports = [stored.event for stored in log.read_from(1) if isinstance(stored.event, JobProgressed)]
    assert [one.window_steps for one in reports] == [1, 49]


def test_a_fault_is_reported_once_while_the_disk_refuses_and_every_heartbeat_is_answered() -> None:
    log = FillingLog()
    answered: list[int] = []

    async def work(loop: LiveLoop) -> None:
        async def said() -> AsyncIterator[node_agent_pb2.ConnectRequest]:
            yield node_agent_pb2.ConnectRequest(hello=HELLO)
            await until(lambda: "g" in loop.engine.state.gpus)
            log.is_full = True
            for sequence in range(50):
                SICK.sequence = sequence
                yield node_agent_pb2.ConnectRequest(heartbeat=SICK)
                await until(lambda: loop.storage_failure)
            await until(lambda: len(answered) == 50)
            log.is_full = False
            await until(lambda: not loop.storage_failure)

        agents = agents_of(loop, ProgressReports(interval_ms=0))
        async for message in agents.Connect(said(), cast("Context", None)):
            answered.extend([message.heartbeat_ack.sequence] * message.HasField("heartbeat_ack"))

    run(work, log)
    assert answered == list(range(50))
    assert kinds(log)[:3] == [NodeJoined.__name__, GpuHealthChanged.__name__, "NodeDisconnected"]
