"""Checkpoints on the wire: the two calls by which agents fetch them through a scheduler and send them to it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cotenant.job import MANIFEST_NAME
from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.errors import SchedulerServiceError
from scheduler_service.grpc_api.status_codes import Context, internal_status, status_of
from tests.simulation.swarm.network import CallContext, Item, Pipe, Stub, rpc_error, unavailable
from tests.simulation.swarm.virtual_time import SimulatedProcess, current

if TYPE_CHECKING:
    from tests.simulation.swarm.machine import Machine
    from tests.simulation.swarm.world import World

CONTENTS_BYTES_MAX = 16
"""In the place of a MiB: files of simulated checkpoints come in several pieces too."""


class RelayCall:
    """A call of an agent beside its stream, to the scheduler that holds the stream.

    Args:
        request: What is asked.
        serve: What the scheduler's servicer does with it, answering one by one.
        answer: The kind of its answers.
    """

    def __init__(
        self,
        machine: Machine,
        request: Any,
        serve: Callable[[Any, Any], AsyncIterator[Any]],
        answer: type[Any],
    ) -> None:
        self._world: World = machine.world
        self._machine = machine
        self._agent = current()
        self._serve = serve
        self._answer = answer
        self._kind = type(request)
        self._heard: asyncio.Queue[Item] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        self._scheduler: SimulatedProcess | None = None
        self._is_over = False
        wire = self._world.wire_of(machine)
        self._up = Pipe(self._world, wire, self._arrive_at_scheduler)
        self._down = Pipe(self._world, wire, self._arrive_at_agent)
        self._agent.at_death.append(self.cancel)
        self._up.send("message", request.SerializeToString())

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            kind, content = await self._heard.get()
            if kind == "message":
                if self._world.strikes("broken_transfer"):
                    self.cancel()
                    raise unavailable("connection reset")
                yield self._answer.FromString(content)
            elif kind == "end":
                return
            else:
                raise content

    def cancel(self) -> None:
        """Hang up; the other side hears of it when the news arrives."""
        if not self._is_over:
            self._is_over = True
            if not self._agent.is_dead or self._machine.is_on:
                self._up.send("reset", None)

    def _arrive_at_agent(self, item: Item) -> None:
        if not self._is_over and not self._agent.is_dead:
            self._heard.put_nowait(item)

    def _arrive_at_scheduler(self, item: Item) -> None:
        kind, content = item
        if kind == "reset":
            if self._serving is not None and self._scheduler is not None and not self._scheduler.is_dead:
                self._serving.cancel()
            return
        connection = self._world.misfortunes.connections.get(self._machine.name)
        host = connection.host if connection is not None else None
        if host is None or host.agents is None or host.process is None or host.process.is_dead:
            self._down.send("error", unavailable("connection refused"))
            return
        self._scheduler = host.process
        self._scheduler.at_death.append(self._lose_scheduler)
        self._serving = self._scheduler.spawn(self._serve_one(host.agents, self._kind.FromString(content)))

    def _lose_scheduler(self) -> None:
        if not self._is_over and self._scheduler is not None and self._scheduler.machine.is_on:
            self._down.send("error", unavailable("connection reset"))

    async def _serve_one(self, servicer: Any, request: Any) -> None:
        try:
            async for answer in self._serve(servicer, request):
                self._down.send("message", answer.SerializeToString())
            self._down.send("end", None)
        except SchedulerServiceError as error:
            self._down.send("error", rpc_error(status_of(error)))
        except Exception as error:
            self._world.note_failure(f"{self._kind.__name__} failed: {error!r}")
            self._down.send("error", rpc_error(internal_status()))


async def _fetched(servicer: Any, request: Any) -> AsyncIterator[Any]:
    async with aclosing(servicer.FetchCheckpoint(request, cast("Context", CallContext()))) as answers:
        async for answer in answers:
            yield answer


async def _taken(servicer: Any, request: Any) -> AsyncIterator[Any]:
    yield await servicer.SendCheckpointPiece(request, cast("Context", CallContext()))


class RelayStub(Stub):
    """In the place of the agent's stub, with the calls beside its stream."""

    def FetchCheckpoint(self, request: messages.FetchCheckpointRequest) -> RelayCall:  # noqa: N802
        """Ask for a checkpoint that another node has."""
        return RelayCall(current().machine, request, _fetched, messages.FetchCheckpointResponse)

    async def SendCheckpointPiece(  # noqa: N802
        self, request: messages.SendCheckpointPieceRequest, *, timeout: float
    ) -> messages.SendCheckpointPieceResponse:
        """Send a piece, and wait until there is room for the next one."""
        # The sender may be killed between any two pieces.
        current().count_write()
        call = RelayCall(current().machine, request, _taken, messages.SendCheckpointPieceResponse)
        try:
            async with asyncio.timeout(timeout):
                return await anext(aiter(call))
        except (TimeoutError, StopAsyncIteration):
            raise unavailable("nobody answers") from None
        finally:
            call.cancel()


def forged(machine: Machine, content: bytes) -> bytes:
    """What an agent hears: it may be asked for another checkpoint than it was, of those that lie on its machine."""
    world = machine.world
    heard = messages.ConnectResponse.FromString(content)
    order = heard.send_checkpoint
    found = sorted(path.parent for path in world.checkpoints_of(machine).glob(f"*/*/*/{MANIFEST_NAME}"))
    others = [path for path in found if path.parts[-2:] != (order.job_id, str(order.checkpoint.fence))]
    if not heard.HasField("send_checkpoint") or not others or not world.strikes("forged_checkpoint"):
        return content
    incarnation_id, order.job_id, fence = world.transfers.choice(others).parts[-3:]
    order.checkpoint.incarnation_id, order.checkpoint.fence = incarnation_id, int(fence)
    return heard.SerializeToString()


class TransferFiles:
    """In the place of `os` where fetched checkpoints are put together: full disks, and ends in the middle."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        """The moment of a durable write."""
        current().count_write()
        if current().machine.is_disk_full:
            raise OSError(errno.ENOSPC, "no space is left on the simulated disk")


class TransferFolders:
    """In the place of `shutil` there: how much room a disk has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def disk_usage(self, path: Path) -> SimpleNamespace:
        """None, or enough."""
        return SimpleNamespace(free=0 if current().machine.is_disk_full else 1 << 40)
