"""An agent that may not join says so aloud, counts it, and waits as long as it was asked to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from cotenant_agent.conversation import Conversation
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.node_agent import AgentRules, NodeAgent
from cotenant_agent.scheduler_link import LinkSettings


@pytest.mark.parametrize(
    ("code", "event", "level", "counted"),
    [
        (grpc.StatusCode.ALREADY_EXISTS, "join_refused", "ERROR", 1.0),
        (grpc.StatusCode.FAILED_PRECONDITION, "join_refused", "ERROR", 1.0),
        (grpc.StatusCode.UNAVAILABLE, "conversation_broken", "WARNING", None),
    ],
)
def test_a_refusal_is_distinguished_from_a_scheduler_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    code: grpc.StatusCode,
    event: str,
    level: str,
    counted: float | None,
) -> None:
    async def refuse(conversation: Conversation, stub: object) -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="what to do")

    monkeypatch.setattr(Conversation, "hold", refuse)
    metrics, nothing = AgentMetrics(), cast("Any", None)
    agent = NodeAgent(
        rules=AgentRules(node_id="n"),
        link=LinkSettings(scheduler="127.0.0.1:1"),
        table=nothing,
        inventory=nothing,
        windows=nothing,
        calibrations=cast("Any", SimpleNamespace(make_way=None)),
        metrics=metrics,
    )

    async def converse() -> float:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            return await agent._converse(channel)

    assert asyncio.run(converse()) == 0.0
    (line,) = caplog.records
    assert (line.msg, line.levelname) == (event, level)
    assert (line.__dict__["code"], line.__dict__["reason"]) == (code.name, "what to do")
    assert metrics.registry.get_sample_value("cotenant_agent_joins_refused_total", {"code": code.name}) == counted
