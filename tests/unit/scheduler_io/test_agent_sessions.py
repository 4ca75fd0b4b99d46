"""Sessions of agents: bounded, replaced, and honest to readers of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents import agent_sessions
from scheduler_service.adapters.agents.agent_sessions import OUTBOUND_MESSAGES_MAX, AgentSession, AgentSessions
from scheduler_service.errors import NodeUnreachableError, OverloadedError

KEY = node_agent_pb2.AttemptKey(job_id="job-1", attempt=1, fence=1)
MESSAGE = node_agent_pb2.ConnectResponse()


async def within(work: Awaitable[None]) -> None:
    await asyncio.wait_for(work, timeout=90)


async def read_all(sessions: AgentSessions) -> bytes:
    return b"".join([chunk async for chunk in sessions.read_log("n", KEY, follow=False, tail_bytes=0)])


async def begin_reading() -> tuple[AgentSessions, AgentSession, asyncio.Future[bytes]]:
    """A connected agent, and a reader whose order it has."""
    sessions = AgentSessions()
    session = sessions.open("n", now_ms=0)
    reading = asyncio.ensure_future(read_all(sessions))
    assert (await session.outbound.get()).read_log.key == KEY
    return sessions, session, reading


def chunk(**fields: object) -> node_agent_pb2.LogChunk:
    return node_agent_pb2.LogChunk(read_id="read-1", **fields)  # type: ignore[arg-type]


def test_an_agent_that_takes_no_orders_is_disconnected() -> None:
    async def work() -> None:
        session = AgentSessions().open("n", now_ms=0)
        assert all(session.send(MESSAGE) for _ in range(OUTBOUND_MESSAGES_MAX))
        assert not session.closed.is_set()
        assert not session.send(MESSAGE)
        assert session.closed.is_set()

    asyncio.run(within(work()))


def test_the_newest_stream_of_a_node_counts() -> None:
    async def work() -> None:
        sessions = AgentSessions()
        old = sessions.open("n", now_ms=0)
        new = sessions.open("n", now_ms=1)
        assert old.closed.is_set()
        assert not sessions.end(old)
        assert sessions.connected == {"n": new}
        assert sessions.end(new)
        assert not sessions.send("n", MESSAGE)

    asyncio.run(within(work()))


def test_a_silent_agent_is_disconnected() -> None:
    async def work() -> None:
        sessions = AgentSessions()
        session = sessions.open("n", now_ms=100)
        sessions.close_silent(heard_before_ms=100)
        assert not session.closed.is_set()
        sessions.close_silent(heard_before_ms=101)
        assert session.closed.is_set()

    asyncio.run(within(work()))


def test_a_log_is_read_to_its_end() -> None:
    async def work() -> None:
        sessions, _, reading = await begin_reading()
        for part in (b"one ", b"two"):
            sessions.take_log_chunk("n", chunk(chunk=part))
        sessions.take_log_chunk("another", chunk(chunk=b"lie", end=True))
        sessions.take_log_chunk("n", chunk(end=True))
        assert await reading == b"one two"

    asyncio.run(within(work()))


def test_a_reader_is_notified_when_the_node_goes_away_or_cannot_read() -> None:
    async def work() -> None:
        sessions, session, reading = await begin_reading()
        sessions.end(session)
        with pytest.raises(NodeUnreachableError, match="went away"):
            await reading
        with pytest.raises(NodeUnreachableError, match="not connected"):
            await read_all(sessions)

    asyncio.run(within(work()))


def test_a_reader_is_notified_when_the_node_dials_in_again() -> None:
    async def work() -> None:
        sessions, _, reading = await begin_reading()
        # The agent has forgotten the order with its old stream.
        sessions.open("n", now_ms=1)
        with pytest.raises(NodeUnreachableError, match="read the log again"):
            await reading

    asyncio.run(within(work()))


def test_a_log_that_comes_too_fast_is_cut_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sessions, "LOG_BYTES_WAITING_MAX", 10)

    async def work() -> None:
        sessions, session, reading = await begin_reading()
        sessions.take_log_chunk("n", chunk(chunk=b"x" * 8))
        sessions.take_log_chunk("n", chunk(chunk=b"x" * 8))
        assert (await session.outbound.get()).read_log.cancel
        with pytest.raises(NodeUnreachableError, match="tail_bytes"):
            await reading

    asyncio.run(within(work()))


def test_the_number_of_logs_read_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sessions, "LOG_READS_MAX", 0)

    async def work() -> None:
        sessions = AgentSessions()
        sessions.open("n", now_ms=0)
        with pytest.raises(OverloadedError, match="try again"):
            await read_all(sessions)

    asyncio.run(within(work()))


def test_when_a_node_was_last_heard_is_known_after_it_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sessions, "ENDED_NODES_MAX", 2)
    sessions = AgentSessions()
    for number in range(3):
        session = sessions.open(f"n{number}", now_ms=10 * number + 10)
        assert sessions.heard_at_ms(f"n{number}") == 10 * number + 10
        sessions.end(session)
    assert [sessions.heard_at_ms(f"n{number}") for number in range(3)] == [0, 20, 30]
