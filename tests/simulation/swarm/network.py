"""The wire between agents and schedulers: streams that delay, repeat, stall and break.

One direction of one stream keeps its order, as TCP does. Order is lost between streams: what an old one still holds
arrives after the words of its successor.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import grpc
from grpc_status import rpc_status

from cotenant.v1 import node_agent_pb2 as messages
from scheduler_service.errors import SchedulerServiceError
from scheduler_service.grpc_api.status_codes import Context, internal_status, status_of
from tests.simulation.swarm.virtual_time import SimulatedProcess, current

if TYPE_CHECKING:
    from tests.simulation.swarm.machine import Machine
    from tests.simulation.swarm.scheduler_host import SchedulerHost
    from tests.simulation.swarm.world import World

BASE_LATENCY_S = 0.005
Item = tuple[str, Any]


class Wire:
    """The way between one machine and the schedulers; cut, it holds what is on it."""

    def __init__(self) -> None:
        self.is_cut = False
        self._stalled: list[Pipe] = []

    def stall(self, pipe: Pipe) -> None:
        """Wait until the wire is whole."""
        self._stalled.append(pipe)

    def mend(self) -> None:
        """Let everything go on that waited."""
        self.is_cut = False
        stalled, self._stalled = self._stalled, []
        for pipe in stalled:
            pipe.go_on()


class Pipe:
    """One direction of a stream: first in, first out, each item after a delay of its own."""

    def __init__(self, world: World, wire: Wire, arrive: Callable[[Item], None]) -> None:
        self._world = world
        self._wire = wire
        self._arrive = arrive
        self._items: deque[Item] = deque()

    def send(self, *item: Any, extra_s: float = 0.0) -> None:
        """Put something on the wire."""
        self._items.append(cast("Item", item))
        if len(self._items) == 1:
            self.go_on(extra_s)

    def go_on(self, extra_s: float = 0.0) -> None:
        """Let the first item travel."""
        delay_s = BASE_LATENCY_S + self._world.extra_delay_s() + extra_s
        self._world.loop.call_later(delay_s, self._travel, context=self._world.context)

    def _travel(self) -> None:
        if self._wire.is_cut:
            self._wire.stall(self)
            return
        item = self._items.popleft()
        self._arrive(item)
        if item[0] == "message" and self._world.strikes("duplicate"):
            self._arrive(item)
        if self._items:
            self.go_on()


class Connection:
    """One call of `Connect` from an agent to whatever scheduler answers.

    Attributes:
        host: The scheduler that has taken the call; None = none yet.
    """

    def __init__(self, world: World, machine: Machine, requests: AsyncIterator[messages.ConnectRequest]) -> None:
        self._world = world
        self._agent = current()
        self._agent_folder = world.agent_folders[self._agent]
        self._requests = requests
        self._up = Pipe(world, machine.world.wire_of(machine), self._arrive_at_scheduler)
        self._down = Pipe(world, machine.world.wire_of(machine), self._arrive_at_agent)
        self._heard: asyncio.Queue[Item] = asyncio.Queue()
        self._asked: asyncio.Queue[Item] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        self._scheduler: SimulatedProcess | None = None
        self.host: SchedulerHost | None = None
        self._is_over = False
        self.machine = machine
        self._agent.at_death.append(self.reset)
        self._up.send("open", None)
        self._pumping = self._agent.spawn(self._pump())

    # --- the agent's end ----------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        async for message in self._requests:
            self._up.send("message", message.SerializeToString())
        self._up.send("end", None)

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        while True:
            kind, content = await self._heard.get()
            if kind == "message":
                yield messages.ConnectResponse.FromString(content)
            elif kind == "end":
                return
            else:
                raise content

    def cancel(self) -> None:
        """Hang up at once, as a call's owner does."""
        self._pumping.cancel()
        self.reset()

    def reset(self) -> None:
        """The agent's end is gone; the other side hears of it when the news arrives."""
        if not self._is_over:
            self._is_over = True
            if not self._agent.is_dead or self._agent.machine.is_on:
                self._up.send("reset", None, extra_s=self._world.late_news_s())

    def say(self, message: messages.ConnectRequest) -> None:
        """Put something into the agent's mouth."""
        if not self._is_over:
            self._up.send("message", message.SerializeToString())

    def break_down(self) -> None:
        """The agent's end sees an error; the other side hears of it late."""
        self._heard.put_nowait(("error", unavailable("connection reset")))

    def _arrive_at_agent(self, item: Item) -> None:
        if item[0] == "message":
            item = ("message", self._world.heard(self.machine, item[1]))
        self._world.tell("to", self.machine.name, item, messages.ConnectResponse)
        if not self._is_over and not self._agent.is_dead:
            self._heard.put_nowait(item)

    # --- the scheduler's end ------------------------------------------------------------------------------------

    def _arrive_at_scheduler(self, item: Item) -> None:
        kind = item[0]
        self._world.tell("from", self.machine.name, item, messages.ConnectRequest)
        if kind == "open":
            self._open()
        elif self._serving is None or self._scheduler is None or self._scheduler.is_dead:
            return
        elif kind == "reset":
            self._serving.cancel()
        else:
            self._asked.put_nowait(item)

    def _open(self) -> None:
        host = self._world.scheduler_for(self.machine)
        if host is None or host.agents is None or host.process is None or host.process.is_dead:
            self._down.send("error", unavailable("connection refused"))
            return
        self._scheduler, self.host = host.process, host
        self._scheduler.at_death.append(self._lose_scheduler)
        self._serving = self._scheduler.spawn(self._serve(host.agents))

    def _lose_scheduler(self) -> None:
        """Its kernel says so where it still runs."""
        if not self._is_over and self._scheduler is not None and self._scheduler.machine.is_on:
            self._down.send("error", unavailable("connection reset"))

    async def _serve(self, servicer: Any) -> None:
        try:
            async with aclosing(servicer.Connect(self._taken(), cast("Context", CallContext()))) as answers:
                async for answer in answers:
                    if answer.HasField("launch_job") and self.host is not None:
                        self.host.order_given(self._agent_folder, answer.launch_job)
                    for key in answer.heartbeat_ack.renewed:
                        cast("SchedulerHost", self.host).lease_renewed(self._agent_folder, key)
                    self._down.send("message", answer.SerializeToString())
            self._down.send("end", None)
        except SchedulerServiceError as error:
            self._down.send("error", rpc_error(status_of(error)))
        except Exception as error:
            self._world.note_failure(f"Connect failed: {error!r}")
            self._down.send("error", rpc_error(internal_status()))

    async def _taken(self) -> AsyncIterator[messages.ConnectRequest]:
        while True:
            kind, content = await self._asked.get()
            if kind != "message":
                return
            message = messages.ConnectRequest.FromString(content)
            if message.HasField("hello") and self.host is not None:
                self.host.greeted(message.hello.seen)
            yield message


class CallContext:
    """A servicer's context as far as streams of agents use it."""

    def auth_context(self) -> dict[str, list[bytes]]:
        """No certificates here."""
        return {}

    def peer(self) -> str:
        """Of no use."""
        return "simulated"

    def invocation_metadata(self) -> tuple[()]:
        """None was sent."""
        return ()


class Channel:
    """In the place of a channel; a stub made of it dials through the wire."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is kept open."""


class Stub:
    """In the place of the agent's stub."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def Connect(self, requests: AsyncIterator[messages.ConnectRequest], **_: Any) -> Connection:  # noqa: N802
        """Dial."""
        machine = current().machine
        return machine.world.connect(machine, requests)


def unavailable(details: str) -> grpc.aio.AioRpcError:
    """The error of a connection that did not come about, or broke."""
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def rpc_error(status: Any) -> grpc.aio.AioRpcError:
    """A rich status as the caller sees it."""
    rich = rpc_status.to_status(status)
    metadata = grpc.aio.Metadata(*rich.trailing_metadata)
    return grpc.aio.AioRpcError(rich.code, grpc.aio.Metadata(), metadata, details=rich.details)
