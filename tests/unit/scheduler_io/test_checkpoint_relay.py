"""Checkpoints on their way through the scheduler: who may ask, who may send, and what is given up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.checkpoint_transfers import (
    PIECES_WAITING_MAX,
    TRANSFERS_MAX,
    CheckpointTransfers,
)
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity
from scheduler_service.core.jobs.gang_records import GangAttempt
from scheduler_service.core.jobs.job_parts import GrantedCheckpoints
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import CHECKPOINT_TRANSFERS, Assignment, Phase
from scheduler_service.errors import (
    AgentProtocolError,
    CheckpointMissingError,
    NodeUnreachableError,
    OverloadedError,
    SchedulerServiceError,
)
from scheduler_service.grpc_api.agents.checkpoint_relay import CheckpointRelay
from tests.support.scheduling import job, node

PIECE = messages.CheckpointPiece(contents=b"abc")
GRANTED = messages.GrantedCheckpoint(fence=1)


def granted(*node_ids: str) -> GrantedCheckpoints:
    return GrantedCheckpoints(fences=(1,), node_ids=node_ids)


def record(**changes: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "request": job("j"), "phase": Phase.STARTING, "attempt": 2, "fence": 2, "node_ids": ("new",),
        "assignments": (Assignment(gpu_id="new.0", rank=0),), "granted": granted("old"),
    }  # fmt: skip
    return JobRecord(**{**fields, **changes})


class Relay:
    """Two connected nodes, and a job that the new one was ordered to launch."""

    def __init__(self, *, sends: bool = True, **changes: Any) -> None:
        self.sessions = AgentSessions()
        self.streams = {name: self.sessions.open(name, now_ms=0) for name in ("old", "new")}
        able = (CHECKPOINT_TRANSFERS,) if sends else ()
        nodes = {name: node(name, 1, enforcements=able) for name in ("old", "new")}
        state = SimpleNamespace(jobs={"j": record(**changes)}, nodes=nodes, abandoned_attempts={})
        loop: Any = SimpleNamespace(engine=SimpleNamespace(state=state))
        self.relay = CheckpointRelay(loop=loop, sessions=self.sessions, identity=ClusterIdentity())

    def request(self, **changes: Any) -> messages.FetchCheckpointRequest:
        key = messages.AttemptKey(job_id="j", attempt=2, fence=2)
        fields = {"node_id": "new", "session_secret": self.streams["new"].secret, "key": key, "checkpoint": GRANTED}
        return messages.FetchCheckpointRequest(**{**fields, **changes})

    async def fetch(self, **changes: Any) -> list[messages.CheckpointPiece]:
        return [one.piece async for one in self.relay.fetch(self.request(**changes))]

    async def order(self) -> messages.SendCheckpoint:
        return (await self.streams["old"].outbound.get()).send_checkpoint

    async def send(self, transfer_id: str, **fields: Any) -> bool:
        whole = {"node_id": "old", "session_secret": self.streams["old"].secret, "transfer_id": transfer_id, **fields}
        return (await self.relay.take(messages.SendCheckpointPieceRequest(**whole))).is_over


def test_a_checkpoint_passes_through_in_its_order() -> None:
    async def main() -> None:
        relay = Relay()
        fetching = asyncio.ensure_future(relay.fetch())
        order = await relay.order()
        assert (order.job_id, order.checkpoint) == ("j", GRANTED)
        pieces = [messages.CheckpointPiece(contents=bytes([one])) for one in range(20)]
        for piece in pieces:
            assert not await relay.send(order.transfer_id, piece=piece)
        await relay.send(order.transfer_id)
        assert await fetching == pieces
        assert await relay.send(order.transfer_id, piece=PIECE), "nobody waits any more"

    asyncio.run(main())


def refused(kind: type[SchedulerServiceError], relay: Relay, **changes: Any) -> str:
    with pytest.raises(kind) as error:
        asyncio.run(relay.fetch(**changes))
    assert relay.streams["old"].outbound.qsize() == 0, "nobody was asked"
    return error.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": "old"},
        {"node_id": "nobody"},
        {"session_secret": ""},
        {"session_secret": "é"},
        {"key": messages.AttemptKey(job_id="j", attempt=1, fence=1)},
        {"key": messages.AttemptKey(job_id="other", attempt=2, fence=2)},
        {"key": messages.AttemptKey(job_id="j", attempt=2, fence=2, incarnation_id="d" * 32)},
        {"checkpoint": messages.GrantedCheckpoint(fence=7)},
        {"checkpoint": messages.GrantedCheckpoint(fence=1, incarnation_id="d" * 32)},
    ],
)
def test_only_the_agent_that_was_ordered_the_launch_gets_a_checkpoint_that_it_grants(changes: dict[str, Any]) -> None:
    refused(AgentProtocolError, Relay(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": Phase.RUNNING},
        {"node_ids": ("old",)},
        {"granted": GrantedCheckpoints(fences=(1,))},
        {"granted": GrantedCheckpoints(fences=(1,), node_ids=("",))},
    ],
)
def test_a_job_that_is_not_being_launched_there_has_no_checkpoint_to_give(changes: dict[str, Any]) -> None:
    refused(AgentProtocolError, Relay(**changes))


GANG: dict[str, Any] = {
    "node_ids": ("old", "new"),
    "assignments": (Assignment(gpu_id="old.0", rank=0), Assignment(gpu_id="new.0", rank=1)),
    "gang": GangAttempt(rendezvous_port=1, resumed_fence=1, started_node_ids=("old",)),
    "granted": granted("gone"),
}


def test_a_later_part_of_a_gang_gets_what_the_first_has_chosen_from_the_first_whoever_wrote_it() -> None:
    async def main() -> None:
        relay = Relay(**GANG)
        fetching = asyncio.ensure_future(relay.fetch())
        order = await relay.order()
        await relay.send(order.transfer_id, piece=PIECE)
        await relay.send(order.transfer_id)
        assert await fetching == [PIECE]

    asyncio.run(main())


@pytest.mark.parametrize("resumed_fence", [0, 7])
def test_a_later_part_gets_nothing_else_than_a_granted_choice(resumed_fence: int) -> None:
    gang = GangAttempt(rendezvous_port=1, resumed_fence=resumed_fence, started_node_ids=("old",))
    relay = Relay(**{**GANG, "gang": gang})
    refused(AgentProtocolError, relay)
    refused(AgentProtocolError, relay, checkpoint=messages.GrantedCheckpoint(fence=resumed_fence))


def test_a_node_that_sends_none_and_one_that_is_away_are_distinguished() -> None:
    assert "sends none" in refused(CheckpointMissingError, Relay(sends=False))
    relay = Relay()
    relay.sessions.end(relay.streams["old"])
    assert "not connected" in refused(NodeUnreachableError, relay)


def test_a_sender_without_the_secret_of_its_stream_is_refused() -> None:
    relay = Relay()
    with pytest.raises(AgentProtocolError):
        asyncio.run(relay.send("any", session_secret="wrong", piece=PIECE))


def test_what_the_sender_says_of_its_failure_is_told_without_what_steers_a_terminal() -> None:
    async def main() -> None:
        relay = Relay()
        fetching = asyncio.ensure_future(relay.fetch())
        order = await relay.order()
        await relay.send(order.transfer_id, error="\x1b[31mit is not whole" + "!" * 1_000)
        with pytest.raises(CheckpointMissingError, match="it is not whole") as error:
            await fetching
        assert "\x1b" not in error.value.message
        assert len(error.value.message) < 500

    asyncio.run(main())


def test_a_piece_that_is_too_large_is_refused() -> None:
    async def main() -> None:
        relay = Relay()
        fetching = asyncio.ensure_future(relay.fetch())
        order = await relay.order()
        huge = messages.CheckpointPiece(contents=bytes(2 << 20))
        with pytest.raises(AgentProtocolError, match="1048576 bytes"):
            await relay.send(order.transfer_id, piece=huge)
        fetching.cancel()

    asyncio.run(main())


def test_a_transfer_whose_ends_do_not_both_move_is_given_up() -> None:
    async def main() -> None:
        sessions = AgentSessions()
        old = sessions.open("old", now_ms=0)
        transfers = CheckpointTransfers(sessions, idle_s=0.05)
        receiving = transfers.fetch("old", "j", GRANTED)
        with pytest.raises(NodeUnreachableError, match="sent nothing"):
            await anext(receiving)
        slow = transfers.fetch("old", "j", GRANTED)
        first = asyncio.ensure_future(anext(slow))
        await old.outbound.get()
        transfer_id = (await old.outbound.get()).send_checkpoint.transfer_id
        request = messages.SendCheckpointPieceRequest(node_id="old", transfer_id=transfer_id, piece=PIECE)
        over = [await transfers.take(request) for _ in range(PIECES_WAITING_MAX + 2)]
        await first
        assert over == [*[False] * (PIECES_WAITING_MAX + 1), True]
        await slow.aclose()
        assert await transfers.take(request)

    asyncio.run(main())


def test_only_so_many_are_on_their_way_at_once() -> None:
    async def main() -> None:
        sessions = AgentSessions()
        sessions.open("old", now_ms=0)
        transfers = CheckpointTransfers(sessions)
        some = [transfers.fetch("old", "j", GRANTED) for _ in range(TRANSFERS_MAX)]
        waiting = [asyncio.ensure_future(anext(one)) for one in some]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await anext(transfers.fetch("old", "j", GRANTED))
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        sessions.end(sessions.connected["old"])
        with pytest.raises(NodeUnreachableError):
            await anext(transfers.fetch("old", "j", GRANTED))

    asyncio.run(main())
