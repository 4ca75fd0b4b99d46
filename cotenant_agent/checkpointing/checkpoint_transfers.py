"""Checkpoints that this node fetches from other nodes and sends to them, through the scheduler.

A transfer that breaks begins again, a few times; what is away by then counts as lost, and an older checkpoint or none
is resumed. Where this node itself cannot take a checkpoint the launch is refused: its steps would be lost without it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.checkpointing.checkpoint_pieces import NO_ROOM, IncomingCheckpoint, read_pieces
from cotenant_agent.checkpointing.checkpoints import Checkpoint, newest_resumable
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.protocol import key_to_message
from cotenant_agent.records import GrantedCheckpoint, LaunchRequest
from cotenant_agent.storage.state_directory import checkpoint_directory, is_job_id
from cotenant_agent.system_clock import boot_ms

if TYPE_CHECKING:
    # Exists for type checkers only: at run time one stub class serves both kinds of channel.
    from cotenant.v1.node_agent_pb2_grpc import NodeAgentServiceAsyncStub

_log = logging.getLogger(__name__)

CHECKPOINT_TRANSFERS: Final = "checkpoint_transfers"
"""What an agent says of its node that fetches and sends checkpoints."""
GANG_TRANSFERS: Final = "gang_checkpoint_transfers"
"""What it says where it does so for its part of a gang across nodes too."""
STAGING: Final = ".incoming"
_SENDS_MAX = 16
_PIECE_TIMEOUT_S = 60.0
_RETRY_PAUSES_S = (0.5, 2.0)
_BUSY_PAUSE_S = 2.0
_BUSY_MS_MAX = 600_000
_ERROR_CHARACTERS_MAX = 300


class CheckpointTransfers:
    """Of one node.

    Args:
        node_id: This node.
        root: Of its checkpoints.
        membership: The cluster of this node.
        limit_bytes: Larger checkpoints are neither fetched nor sent; 0 = none is.
    """

    def __init__(self, *, node_id: str, root: Path, membership: ClusterMembership, limit_bytes: int) -> None:
        self._node_id = node_id
        self._root = root
        self._membership = membership
        self._limit_bytes = limit_bytes
        self._stub: NodeAgentServiceAsyncStub | None = None
        self._session_secret = ""
        self._sends: set[asyncio.Task[None]] = set()
        # Agents of several nodes may keep their checkpoints in one folder.
        self._staging = root / STAGING / f"of-{node_id}"
        # What an agent before this one was killed over.
        shutil.rmtree(self._staging, ignore_errors=True)

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """What is being sent."""
        return tuple(self._sends)

    def begin(self, stub: NodeAgentServiceAsyncStub, session_secret: str) -> None:
        """Use this stream's channel, and its secret, from now on."""
        self._stub, self._session_secret = stub, session_secret

    def may_fetch(self, request: LaunchRequest) -> bool:
        """Whether a checkpoint that may be resumed could be on another node; that of a gang is on its first one."""
        if not self._limit_bytes or not request.chooses_port:
            return self._limit_bytes > 0
        return request.steps_done > 0 and any(self._others(one) for one in request.granted)

    async def find_resumable(self, request: LaunchRequest) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """The newest checkpoint that may be resumed, fetched where it is on another node; None = there is none.

        Returns:
            It, and what the job's owner should know of what was fetched and what was not.

        Raises:
            CommandRefusedError: There is one, and this node cannot take it; or all ranks are to go on from one that it
                cannot have.
        """
        notes: list[str] = []
        candidates = request.granted if request.chooses_port else _choice_of_first(request)
        for one in candidates:
            here = self._membership.checkpoint_directories(self._root, request.key.job_id, [one])
            found = await asyncio.to_thread(newest_resumable, here)
            if found is None and self._others(one):
                found = await self._fetch(request, one, notes)
            if found is not None:
                return found, tuple(notes)
        if candidates and not request.chooses_port:
            raise CommandRefusedError(NO_ROOM, "; ".join(["all ranks go on from the checkpoint of the first", *notes]))
        return None, tuple(notes)

    def _others(self, one: GrantedCheckpoint) -> set[str]:
        return {*one.source_ids} - {self._node_id}

    async def _fetch(self, request: LaunchRequest, one: GrantedCheckpoint, notes: list[str]) -> Checkpoint | None:
        """Fetch a checkpoint, and note how that went; None = it cannot be had."""
        nodes = " and ".join(one.source_ids)
        about = {**request.key.fields(), "from_node": nodes, "of_fence": one.fence}
        until_ms, pauses_s = boot_ms() + _BUSY_MS_MAX, list(_RETRY_PAUSES_S)
        while True:
            try:
                found = await self._fetch_once(request, one)
            except grpc.aio.AioRpcError as error:
                code, reason = error.code(), error.details() or error.code().name
                pause_s = _pause_s(code, pauses_s, is_patient=boot_ms() < until_ms)
            except CommandRefusedError as refusal:
                if refusal.code == NO_ROOM:
                    raise
                reason, pause_s = str(refusal), pauses_s.pop(0) if pauses_s else None
            else:
                _log.info("checkpoint_fetched", extra={**about, "step": found.step})
                notes.append(f"the checkpoint of step {found.step} was fetched from node {nodes}")
                return found
            event = "checkpoint_not_fetched" if pause_s is None else "checkpoint_fetch_repeated"
            _log.warning(event, extra={**about, "reason": reason})
            if pause_s is None:
                notes.append(f"no checkpoint was fetched from node {nodes}: {reason[:_ERROR_CHARACTERS_MAX]}")
                return None
            await asyncio.sleep(pause_s)

    async def _fetch_once(self, request: LaunchRequest, one: GrantedCheckpoint) -> Checkpoint:
        key = request.key
        place = (one.incarnation_id, key.job_id, one.fence)
        staging = self._staging / key.directory_name
        incoming = await asyncio.to_thread(IncomingCheckpoint, staging, place, self._limit_bytes)
        target = checkpoint_directory(self._root, key.job_id, one.fence, one.incarnation_id)
        try:
            for node_id in one.source_ids:
                await self._take_from(node_id, request, one, incoming)
                if incoming.is_whole:
                    break
                await asyncio.to_thread(incoming.end_part)
            else:
                incoming.join_parts()
            return await asyncio.to_thread(incoming.finish, target)
        finally:
            incoming.close()

    async def _take_from(
        self, node_id: str, request: LaunchRequest, one: GrantedCheckpoint, incoming: IncomingCheckpoint
    ) -> None:
        """Take what a node has of a checkpoint, which may be this node."""
        order = messages.GrantedCheckpoint(incarnation_id=one.incarnation_id, fence=one.fence, node_id=node_id)
        if node_id == self._node_id:
            own = messages.SendCheckpoint(job_id=request.key.job_id, checkpoint=order)
            pieces = read_pieces(self._directory_of(own), self._limit_bytes)
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                await asyncio.to_thread(incoming.take, piece)
            return
        if self._stub is None:
            raise CommandRefusedError("NOT_CONNECTED", "the scheduler is not reached")
        asked = messages.FetchCheckpointRequest(
            node_id=self._node_id,
            session_secret=self._session_secret,
            key=key_to_message(request.key),
            checkpoint=order,
        )
        async for answer in self._stub.FetchCheckpoint(asked):
            await asyncio.to_thread(incoming.take, answer.piece)

    def send(self, order: messages.SendCheckpoint) -> None:
        """Send a checkpoint of this node, or say why not."""
        self._sends = {task for task in self._sends if not task.done()}
        # The scheduler orders fewer at a time; who is not sent to asks again.
        if len(self._sends) < _SENDS_MAX:
            self._sends.add(asyncio.create_task(self._send(order)))

    async def _send(self, order: messages.SendCheckpoint) -> None:
        error = ""
        try:
            pieces = read_pieces(self._directory_of(order), self._limit_bytes)
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                if await self._send_piece(order, piece=piece):
                    return
        except (CommandRefusedError, OSError, ValueError) as refusal:
            error = str(refusal)
        except grpc.aio.AioRpcError as broken:
            _log.warning("checkpoint_not_sent", extra={"job_id": order.job_id, "reason": broken.details()})
            return
        _log.info("checkpoint_sent", extra={"job_id": order.job_id, "reason": error})
        try:
            await self._send_piece(order, error=error[:_ERROR_CHARACTERS_MAX])
        except grpc.aio.AioRpcError as broken:
            _log.warning("checkpoint_not_sent", extra={"job_id": order.job_id, "reason": broken.details()})

    def _directory_of(self, order: messages.SendCheckpoint) -> Path:
        """Where the checkpoint lies.

        Raises:
            CommandRefusedError: It is of no job, or of another cluster.
        """
        one = order.checkpoint
        granted = GrantedCheckpoint(incarnation_id=one.incarnation_id, fence=one.fence)
        known = is_job_id(order.job_id) and self._membership.checkpoint_directories(self._root, order.job_id, [granted])
        if not known:
            raise CommandRefusedError("UNKNOWN_CLUSTER", "it is of a cluster that this node left")
        return next((path for path in known if path.is_dir()), known[0])

    async def _send_piece(
        self, order: messages.SendCheckpoint, *, piece: messages.CheckpointPiece | None = None, error: str = ""
    ) -> bool:
        """Send a piece, or why there are no more; returns whether the receiver wants none any more."""
        if self._stub is None:
            return True
        request = messages.SendCheckpointPieceRequest(
            node_id=self._node_id,
            session_secret=self._session_secret,
            transfer_id=order.transfer_id,
            piece=piece,
            error=error,
        )
        answer = await self._stub.SendCheckpointPiece(request, timeout=_PIECE_TIMEOUT_S)
        return answer.is_over


def _choice_of_first(request: LaunchRequest) -> tuple[GrantedCheckpoint, ...]:
    part = request.gang_part
    return (part.resumed,) if part is not None and part.resumed is not None else ()


def _pause_s(code: grpc.StatusCode, pauses_s: list[float], *, is_patient: bool) -> float | None:
    """After how long a fetch is repeated; None = it is not.

    Args:
        code: How it ended.
        pauses_s: Before the tries that are left; one is taken.
        is_patient: Whether it may still wait for others to end.
    """
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and is_patient:
        return _BUSY_PAUSE_S
    return pauses_s.pop(0) if code is grpc.StatusCode.UNAVAILABLE and pauses_s else None
