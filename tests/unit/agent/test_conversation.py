"""One stream with a scheduler of the test's own making, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.conversation import Conversation
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.leases import Lease, Moment
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.records import AttemptKey, GpuReading
from cotenant_agent.storage.state_directory import AttemptDirectory
from cotenant_agent.system_clock import boot_ms

LEASE_MS = 20_000


class Table:
    """Launches nothing; remembers until when it may launch."""

    def __init__(self, state: Path, *attempts: object) -> None:
        self.directory = SimpleNamespace(checkpoints=state)
        self._attempts = attempts
        self.leases: list[Lease] = []

    def __iter__(self) -> Any:
        return iter(self._attempts)

    def launch(self, request: object, resume: object, lease: Lease) -> object:
        self.leases.append(lease)
        return SimpleNamespace(end=None)

    def renew(self, *_: object) -> None:
        pass


class Stream:
    """Answers a Hello with a welcome, waits, and orders a launch; the heartbeats before it may be confirmed."""

    greeted_boot_ms = confirmed_boot_ms = 0
    """When the Hello, and the newest heartbeat that was confirmed, had come."""

    def __init__(self, *, confirms: bool) -> None:
        self._confirms = confirms

    def Connect(self, said: AsyncIterator[messages.ConnectRequest]) -> Stream:  # noqa: N802
        self._said = said
        return self

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        assert (await anext(self._said)).HasField("hello")
        self.greeted_boot_ms = boot_ms()
        yield messages.ConnectResponse(welcome=messages.Welcome(heartbeat_ms=50, lease_ms=LEASE_MS, grace_ms=0))
        await asyncio.sleep(0.1)
        beat = (await anext(self._said)).heartbeat
        while self._confirms and beat.sequence < 5:
            beat = (await anext(self._said)).heartbeat
        if self._confirms:
            self.confirmed_boot_ms = boot_ms()
            yield messages.ConnectResponse(heartbeat_ack=messages.HeartbeatAck(sequence=beat.sequence))
        key = messages.AttemptKey(job_id="job", attempt=1, fence=1)
        yield messages.ConnectResponse(launch_job=messages.LaunchJob(key=key, spec=scheduling_pb2.JobSpec()))
        await asyncio.sleep(0.2)


async def nothing_to_end() -> None: ...


def conversation_about(
    table: Table,
    readings: tuple[GpuReading, ...] = (),
    make_way: Callable[[], Awaitable[None]] = nothing_to_end,
    transfers: object = None,
) -> Conversation:
    return Conversation(
        table=cast("Any", table),
        read_gpus=lambda: readings,
        windows=MeasurementWindowRecorder(campaign="", devices={}, make_id=str),
        hello=messages.Hello,
        on_welcome=lambda _: None,
        make_way=make_way,
        metrics=AgentMetrics(),
        transfers=cast("Any", transfers),
    )


def lease_start_boot_ms(tmp_path: Path, stream: Stream) -> int:
    """The deadline of what was launched, less the lease."""
    table = Table(tmp_path)
    conversation = conversation_about(table)
    asyncio.run(asyncio.wait_for(conversation.hold(cast("Any", stream)), timeout=90))
    (lease,) = table.leases
    return lease.deadline_boot_ms - LEASE_MS


def test_an_order_that_was_long_on_its_way_starts_a_lease_in_the_past(tmp_path: Path) -> None:
    stream, began_ms = Stream(confirms=False), boot_ms()
    # The scheduler may have sent it right after the Hello, and counts from there until it gives the node up.
    assert began_ms <= lease_start_boot_ms(tmp_path, stream) <= stream.greeted_boot_ms


def test_a_lease_starts_with_the_newest_heartbeat_that_was_confirmed(tmp_path: Path) -> None:
    stream = Stream(confirms=True)
    assert stream.greeted_boot_ms < lease_start_boot_ms(tmp_path, stream) <= stream.confirmed_boot_ms


def test_a_lease_counts_sleep_unless_the_scheduler_sleeps_with_this_machine() -> None:
    sent = Moment(boot_ms=900_000, awake_ms=600_000)
    rules = messages.Welcome(lease_ms=LEASE_MS, grace_ms=5_000)
    alone = {"deadline_boot_ms": 900_000 + LEASE_MS, "grace_ms": 5_000, "incarnation_id": "i"}
    assert Lease.since(sent, rules).record("i") == alone
    rules.same_boot = True
    assert Lease.since(sent, rules).record("i") == {**alone, "deadline_awake_ms": 600_000 + LEASE_MS}


class RefusedStream:
    """Reads what is said as gRPC does, in a task of its own, and ends the call after the Hello."""

    reader: asyncio.Task[None]

    def Connect(self, said: AsyncIterator[messages.ConnectRequest]) -> RefusedStream:  # noqa: N802
        self.heard = asyncio.Event()

        async def read() -> None:
            async for _ in said:
                self.heard.set()

        self.reader = asyncio.create_task(read())
        return self

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        await self.heard.wait()
        for nothing in list[messages.ConnectResponse]():
            yield nothing
        raise ConnectionRefusedError("not this node")


@pytest.mark.parametrize("is_full", [False, True])
def test_the_reader_of_what_is_said_ends_with_a_refused_conversation(tmp_path: Path, is_full: bool) -> None:
    async def main() -> None:
        stream = RefusedStream()
        talking = conversation_about(Table(tmp_path))
        key = AttemptKey(job_id="job-1", attempt=1, fence=1)
        started = SimpleNamespace(key=key, rendezvous_port=0, resumed_fence=0)
        if is_full:
            for _ in range(5_000):
                talking.announce_start(cast("Attempt", started))
        with pytest.raises(ConnectionRefusedError):
            await talking.hold(cast("Any", stream))
        await asyncio.wait_for(stream.reader, timeout=90)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("foreign_ratios", "flags"),
    [({"gpu-0": 0.4}, ["foreign_load"]), ({"gpu-0": 0.05}, []), ({"gpu-0": None}, []), ({"gpu-1": 0.4}, []), ({}, [])],
)
def test_a_window_in_which_others_used_a_device_of_the_attempt_says_so(
    tmp_path: Path, foreign_ratios: dict[str, float | None], flags: list[str]
) -> None:
    directory = AttemptDirectory(tmp_path / "jobs" / "job.1")
    directory.path.mkdir(parents=True)
    directory.state.write_text("{}")
    spec: dict[str, object] = {"job_id": "job", "attempt": 1, "fence": 1, "gpu_ids": ["gpu-0"]}
    attempt = Attempt(directory, spec, tmp_path, tmp_path)
    readings = tuple(GpuReading(gpu_id=gpu_id, foreign_ratio=ratio) for gpu_id, ratio in foreign_ratios.items())
    (reported,) = conversation_about(Table(tmp_path, attempt), readings)._heartbeat(1).attempts
    assert list(reported.quality_flags) == flags


class FullDisk(Table):
    """A table whose disk takes a stop at the third try."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.tries = 0

    def stop(self, key: AttemptKey, cause: str, grace_ms: int) -> None:
        self.tries += 1
        if self.tries < 3:
            raise OSError(28, "No space left on device")


class StoppingStream(Stream):
    """Orders a stop, and reads what is said until the stop is stored."""

    def __init__(self, table: FullDisk) -> None:
        super().__init__(confirms=False)
        self._table = table
        self.refusals: list[str] = []

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        assert (await anext(self._said)).HasField("hello")
        yield messages.ConnectResponse(welcome=messages.Welcome(heartbeat_ms=50, lease_ms=LEASE_MS, grace_ms=0))
        key = messages.AttemptKey(job_id="job", attempt=1, fence=1)
        yield messages.ConnectResponse(stop_job=messages.StopJob(key=key, cause="preempted"))
        while self._table.tries < 3:
            said = await anext(self._said)
            self.refusals += [said.command_refused.code] if said.HasField("command_refused") else []


def test_a_stop_that_the_disk_does_not_take_is_tried_again_and_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotenant_agent.conversation._STOP_RETRY_S", 0.01)
    table = FullDisk(tmp_path)
    stream = StoppingStream(table)
    asyncio.run(asyncio.wait_for(conversation_about(table).hold(cast("Any", stream)), timeout=90))
    assert (table.tries, stream.refusals) == (3, [])


class Fetching:
    """A checkpoint that never comes, or comes at once."""

    tasks = ()

    def __init__(self, *, comes: bool) -> None:
        self._comes = comes
        self.begun = self.cancelled = 0

    def begin(self, *_: object) -> None:
        pass

    def may_fetch(self, _: object) -> bool:
        return True

    async def find_resumable(self, _: object) -> tuple[None, tuple[str, ...]]:
        self.begun += 1
        try:
            await asyncio.sleep(0 if self._comes else 3_600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return None, ()


class StoppedLaunch(Stream):
    """Orders one launch twice, and when that has begun its end."""

    def __init__(self, has_begun: Callable[[], bool], has_ended: Callable[[], bool]) -> None:
        self._has_begun, self._has_ended = has_begun, has_ended

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        assert (await anext(self._said)).HasField("hello")
        yield messages.ConnectResponse(welcome=messages.Welcome(heartbeat_ms=50, lease_ms=LEASE_MS, grace_ms=0))
        key = messages.AttemptKey(job_id="job", attempt=1, fence=1)
        for _ in range(2):
            yield messages.ConnectResponse(launch_job=messages.LaunchJob(key=key, spec=scheduling_pb2.JobSpec()))
        while not self._has_begun():  # noqa: ASYNC110 - looks at what the conversation does
            await asyncio.sleep(0.01)
        yield messages.ConnectResponse(stop_job=messages.StopJob(key=key))
        while not self._has_ended():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class StoppableTable(Table):
    """Knows no attempt, whatever is to be stopped."""

    stops = 0

    def stop(self, *_: object) -> None:
        self.stops += 1
        raise CommandRefusedError("NO_SUCH_ATTEMPT", "it is not on this node")


@pytest.mark.parametrize("comes", [True, False])
def test_a_launch_that_waits_for_its_checkpoint_is_stopped_and_holds_up_no_other_order(
    tmp_path: Path, comes: bool
) -> None:
    table, transfers = StoppableTable(tmp_path), Fetching(comes=comes)
    conversation = conversation_about(table, transfers=transfers)
    stream = StoppedLaunch(
        has_begun=lambda: bool(table.leases if comes else transfers.begun),
        has_ended=lambda: bool(table.stops if comes else transfers.cancelled),
    )
    asyncio.run(asyncio.wait_for(conversation.hold(cast("Any", stream)), timeout=90))
    launched = len(table.leases)
    assert (transfers.cancelled, launched > 0) == ((0, True) if comes else (1, False))
    assert comes or transfers.begun == 1


class Listener(Stream):
    """Welcomes an agent and hears its heartbeats, and says nothing more."""

    def __init__(self) -> None:
        super().__init__(confirms=False)
        self.hears = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[messages.ConnectResponse]:
        assert (await anext(self._said)).HasField("hello")
        yield messages.ConnectResponse(welcome=messages.Welcome(heartbeat_ms=LEASE_MS, lease_ms=LEASE_MS, grace_ms=0))
        assert (await anext(self._said)).HasField("heartbeat")
        self.hears.set()
        await asyncio.Event().wait()


def test_an_agent_that_tells_that_it_leaves_and_leaves_waits_for_no_silence(tmp_path: Path) -> None:
    """An idle one under the demo was killed after fifteen seconds instead."""
    table = Table(tmp_path)
    table.find_failed_pauses = lambda: ()  # type: ignore[attr-defined]
    conversation = conversation_about(table)

    async def main() -> None:
        listener = Listener()
        talk = asyncio.create_task(conversation.hold(cast("Any", listener)))
        await asyncio.wait_for(listener.hears.wait(), timeout=90)
        conversation.announce_changes()
        talk.cancel()
        # The scheduler would count as silent after ten seconds.
        assert (await asyncio.wait([talk], timeout=90))[0] == {talk}

    asyncio.run(main())
