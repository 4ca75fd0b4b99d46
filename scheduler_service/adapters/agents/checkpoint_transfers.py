"""Checkpoints on their way from one node to another: a few pieces of each are here at a time, and none is kept.

Agents only dial out, so that none can reach another one. A sender is answered when there is room for its next piece; a
transfer whose two ends do not both move is given up, and its receiver fetches again from the beginning.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.errors import AgentProtocolError, CheckpointMissingError, NodeUnreachableError, OverloadedError

TRANSFERS_MAX: Final = 8
"""At once; further ones are tried again by the nodes that ask."""
PIECES_WAITING_MAX: Final = 4
PIECE_BYTES_MAX: Final = 1024 * 1024
IDLE_S: Final = 30.0
"""After so long without a piece, or without room for one, a transfer is given up."""
_ERROR_CHARACTERS_MAX = 300


@dataclass(slots=True, kw_only=True)
class CheckpointTransfer:
    """One of them; None in `pieces` is the end.

    Attributes:
        node_id: Of the sender.
        failure: Why it is not whole; empty = it is, or it goes on.
    """

    transfer_id: str
    node_id: str
    pieces: asyncio.Queue[node_agent_pb2.CheckpointPiece | None] = field(
        default_factory=lambda: asyncio.Queue(PIECES_WAITING_MAX)
    )
    failure: str = ""


class CheckpointTransfers:
    """All that go on.

    Args:
        sessions: The connected agents.
        idle_s: As `IDLE_S`.
    """

    def __init__(self, sessions: AgentSessions, *, idle_s: float = IDLE_S) -> None:
        self._sessions = sessions
        self._idle_s = idle_s
        self._transfers: dict[str, CheckpointTransfer] = {}

    async def fetch(
        self, node_id: str, job_id: str, checkpoint: node_agent_pb2.GrantedCheckpoint
    ) -> AsyncGenerator[node_agent_pb2.CheckpointPiece, None]:
        """Yield the pieces of a checkpoint that another node has.

        Args:
            node_id: Which node has it.
            job_id: Whose it is.
            checkpoint: Which one.

        Raises:
            CheckpointMissingError: The node has no whole one.
            NodeUnreachableError: The node is not connected, or stops sending.
            OverloadedError: Too many are on their way.
        """
        if len(self._transfers) >= TRANSFERS_MAX:
            raise OverloadedError(f"{TRANSFERS_MAX} checkpoints are on their way already; try again in a moment")
        transfer = CheckpointTransfer(transfer_id=uuid.uuid4().hex, node_id=node_id)
        order = node_agent_pb2.SendCheckpoint(transfer_id=transfer.transfer_id, job_id=job_id, checkpoint=checkpoint)
        self._transfers[transfer.transfer_id] = transfer
        try:
            if not self._sessions.send(node_id, node_agent_pb2.ConnectResponse(send_checkpoint=order)):
                raise NodeUnreachableError(f"node {node_id}, which has the checkpoint, is not connected")
            while (piece := await self._next(transfer)) is not None:
                yield piece
        finally:
            del self._transfers[transfer.transfer_id]

    async def _next(self, transfer: CheckpointTransfer) -> node_agent_pb2.CheckpointPiece | None:
        try:
            async with asyncio.timeout(self._idle_s):
                piece = await transfer.pieces.get()
        except TimeoutError:
            raise NodeUnreachableError(
                f"node {transfer.node_id}, which has the checkpoint, sent nothing for {self._idle_s:g} s"
            ) from None
        if piece is None and transfer.failure:
            raise CheckpointMissingError(f"node {transfer.node_id} cannot send the checkpoint: {transfer.failure}")
        return piece

    async def take(self, request: node_agent_pb2.SendCheckpointPieceRequest) -> bool:
        """Pass a piece on once there is room for it; return whether no receiver waits for it any more.

        Raises:
            AgentProtocolError: It is larger than a piece may be.
        """
        transfer = self._transfers.get(request.transfer_id)
        if transfer is None or transfer.node_id != request.node_id:
            return True
        if request.piece.ByteSize() > PIECE_BYTES_MAX + 1024:
            raise AgentProtocolError(f"a piece of a checkpoint has at most {PIECE_BYTES_MAX} bytes")
        is_last = not request.HasField("piece")
        if is_last:
            transfer.failure = "".join(filter(str.isprintable, request.error))[:_ERROR_CHARACTERS_MAX]
        try:
            async with asyncio.timeout(self._idle_s):
                await transfer.pieces.put(None if is_last else request.piece)
        except TimeoutError:
            return True
        return request.transfer_id not in self._transfers
