"""Logs that the scheduler reads over one stream: each is a task, which ends with the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeAlias

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.attempts.attempt_table import AttemptTable
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.progress_reading.log_reading import LogReader, find_rank_log
from cotenant_agent.protocol import key_from_message

Outbound: TypeAlias = "asyncio.Queue[messages.ConnectRequest | None]"

_LOG_STREAMS_LIMIT = 16
_FOLLOW_PAUSE_S = 0.2


class LogStreams:
    """The logs of this node's attempts that are being read."""

    def __init__(self, table: AttemptTable, membership: ClusterMembership) -> None:
        self._table = table
        self._membership = membership
        self._reads: dict[str, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """Those that go on, or have just ended."""
        return tuple(self._reads.values())

    def start(self, order: messages.ReadLog, outbound: Outbound) -> None:
        """Read a log and send it, or stop doing so."""
        running = self._reads.pop(order.read_id, None)
        if running is not None:
            running.cancel()
        self._reads = {read_id: task for read_id, task in self._reads.items() if not task.done()}
        if order.cancel:
            return
        if len(self._reads) >= _LOG_STREAMS_LIMIT:
            error = f"this node already serves {_LOG_STREAMS_LIMIT} readers of logs; try again later"
            # A full queue means a stream that does not move; the reader gives up by itself.
            with contextlib.suppress(asyncio.QueueFull):
                outbound.put_nowait(_log_chunk(messages.LogChunk(read_id=order.read_id, end=True, error=error)))
            return
        self._reads[order.read_id] = asyncio.create_task(self._read(order, outbound))

    async def _read(self, order: messages.ReadLog, outbound: Outbound) -> None:
        try:
            directory = self._table.find_directory(key_from_message(order.key), self._membership.lineage)
            name = find_rank_log(directory, order.rank, order.server if order.HasField("server") else None)
        except CommandRefusedError as refusal:
            await outbound.put(_log_chunk(messages.LogChunk(read_id=order.read_id, end=True, error=str(refusal))))
            return
        reader = LogReader(directory, order.tail_bytes, name)
        try:
            while True:
                # Looked at before reading: what an ended job wrote is complete.
                complete = not order.follow or directory.exit.exists()
                while chunk := reader.read():
                    await outbound.put(_log_chunk(messages.LogChunk(read_id=order.read_id, chunk=chunk)))
                if complete:
                    break
                await asyncio.sleep(_FOLLOW_PAUSE_S)
        finally:
            reader.close()
        await outbound.put(_log_chunk(messages.LogChunk(read_id=order.read_id, end=True)))


def _log_chunk(chunk: messages.LogChunk) -> messages.ConnectRequest:
    return messages.ConnectRequest(log_chunk=chunk)
