"""One stream with the scheduler, from Hello to its end: facts go up, orders come down.

Facts are repeated until they are known to be stored, so a stream may break at any instant without loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.attempt_table import AttemptTable
from cotenant_agent.attempts.early_attempts import find_prepared, give_up_early
from cotenant_agent.attempts.early_start import PREPARATION_LOST
from cotenant_agent.attempts.log_streams import LogStreams
from cotenant_agent.attempts.pause_orders import NOT_PAUSABLE
from cotenant_agent.attempts.stop_orders import note_ended_parts
from cotenant_agent.checkpointing.checkpoint_transfers import CheckpointTransfers
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.checkpointing.shared_storage import find_resumable
from cotenant_agent.cluster_membership import ClusterMembership
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.leases import Lease, Moment
from cotenant_agent.metrics import AgentMetrics
from cotenant_agent.protocol import (
    end_to_message,
    key_from_message,
    key_to_message,
    launch_from_message,
    observation_to_message,
    position_from_message,
    reading_to_message,
    window_to_message,
)
from cotenant_agent.records import AttemptEnd, AttemptKey, AttemptState, GpuReading, LaunchRequest
from cotenant_agent.storage.state_directory import checkpoint_directory
from cotenant_agent.system_clock import boot_ms, wall_ms

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    # Exists for type checkers only: at run time one stub class serves both kinds of channel.
    from cotenant.v1.node_agent_pb2_grpc import NodeAgentServiceAsyncStub

_OUTBOUND_LIMIT = 1000
_COMMAND_LIMIT = 1000
# Between two tries to store a stop that the disk does not take.
_STOP_RETRY_S = 0.5
_SENT_BEATS_KEPT = 64
_SILENT_BEATS = 5
# A paused attempt keeps its lease like any other.
_ALIVE = (AttemptState.RUNNING, AttemptState.PAUSED, AttemptState.STOPPING)
_WELCOME_TIMEOUT_S = 15.0


class Conversation:
    """The agent's side of one stream."""

    def __init__(
        self,
        *,
        table: AttemptTable,
        read_gpus: Callable[[], tuple[GpuReading, ...]],
        windows: MeasurementWindowRecorder,
        hello: Callable[[], messages.Hello],
        on_welcome: Callable[[str], None],
        make_way: Callable[[], Awaitable[None]],
        metrics: AgentMetrics,
        membership: ClusterMembership | None = None,
        transfers: CheckpointTransfers | None = None,
    ) -> None:
        self._table = table
        self._membership = membership or ClusterMembership()
        self._read_gpus = read_gpus
        self._windows = windows
        self._hello = hello
        self._on_welcome = on_welcome
        self._make_way = make_way
        self._is_over = asyncio.Event()
        self._metrics = metrics
        self._rules = messages.Welcome(heartbeat_ms=2000, lease_ms=30_000, grace_ms=30_000)
        self._outbound: asyncio.Queue[messages.ConnectRequest | None] = asyncio.Queue(_OUTBOUND_LIMIT)
        self._commands: asyncio.Queue[messages.ConnectResponse] = asyncio.Queue(_COMMAND_LIMIT)
        self._log_streams = LogStreams(table, self._membership)
        self._transfers = transfers
        self._fetches: dict[AttemptKey, asyncio.Task[None]] = {}
        self._stub: NodeAgentServiceAsyncStub | None = None
        self._prepared: set[AttemptKey] = set()
        self._sent_beats: dict[int, Moment] = {}
        self._sent_windows: dict[int, frozenset[str]] = {}
        self._heard_ms = boot_ms()
        self._confirmed = Moment.now()
        self._welcomed = asyncio.Event()
        self._news = asyncio.Event()

    async def hold(self, stub: NodeAgentServiceAsyncStub) -> None:
        """Talk until the stream ends.

        Raises:
            AioRpcError: it broke.
            TimeoutError: there was no Welcome.
            ClusterRefusedError: this node does not obey that scheduler.
            OSError: the disk does not take which scheduler welcomed this node.
        """
        self._stub = stub
        call = stub.Connect(self._outgoing())
        tasks = [
            asyncio.create_task(self._listen(call)),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._obey()),
            asyncio.create_task(self._is_over.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            self._end_outgoing()
            sends = () if self._transfers is None else self._transfers.tasks
            running = [*tasks, *self._log_streams.tasks, *self._fetches.values(), *sends]
            for task in running:
                task.cancel()
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results[: len(tasks)]:
            if isinstance(result, Exception):
                raise result

    def leave(self) -> None:
        """End the stream; the next one begins with a new Hello."""
        self._is_over.set()

    def announce_start(self, attempt: Attempt) -> None:
        """Report that a job has started, where its ranks meet, and from which checkpoint they go on."""
        if self._membership.holds(attempt.key):
            started = messages.AttemptStarted(
                key=key_to_message(attempt.key),
                rendezvous_port=attempt.rendezvous_port,
                resumed_fence=attempt.resumed_fence,
            )
            self._send(messages.ConnectRequest(attempt_started=started))

    def announce_end(self, end: AttemptEnd) -> None:
        """Report how an attempt ended; repeated with every heartbeat until it is stored."""
        if not self._membership.holds(end.key):
            return
        self._send(messages.ConnectRequest(attempt_exited=end_to_message(end)))

    def announce_preparations(self) -> None:
        """Report which attempts, started early, wait for their launch, and which have ended before it."""
        for key in find_prepared(self._table):
            self._send(messages.ConnectRequest(attempt_prepared=messages.AttemptPrepared(key=key_to_message(key))))
        for key, cause in self._table.preparations.take():
            self._end_preparation(key, CommandRefusedError(PREPARATION_LOST, cause))

    def _end_preparation(self, key: AttemptKey, refusal: CommandRefusedError) -> None:
        _log.warning("preparation_ended", extra={**key.fields(), "reason": str(refusal)})
        self._prepared.discard(key)
        ended = messages.PreparationEnded(key=key_to_message(key), code=refusal.code, message=refusal.message)
        self._send(messages.ConnectRequest(preparation_ended=ended))

    def announce_changes(self) -> None:
        """Report with a heartbeat at once: an attempt stands still or goes on, the agent leaves; and failed pauses."""
        for key, failure in self._table.find_failed_pauses():
            self._refuse(key, "pause_job", CommandRefusedError(NOT_PAUSABLE, failure))
        self._news.set()

    def _send(self, message: messages.ConnectRequest) -> None:
        # A full queue means a stream that does not move; what matters is sent again.
        with contextlib.suppress(asyncio.QueueFull):
            self._outbound.put_nowait(message)

    async def _outgoing(self) -> AsyncIterator[messages.ConnectRequest]:
        yield messages.ConnectRequest(hello=self._hello())
        while (message := await self._outbound.get()) is not None:
            yield message

    def _end_outgoing(self) -> None:
        """Let gRPC's reader of `_outgoing` end: it does not when the other side ends the stream."""
        while not self._outbound.empty():
            self._outbound.get_nowait()
        self._outbound.put_nowait(None)

    async def _listen(self, call: AsyncIterable[messages.ConnectResponse]) -> None:
        async for message in call:
            self._heard_ms = boot_ms()
            kind = message.WhichOneof("message")
            if kind == "welcome":
                self._take_welcome(message.welcome)
            elif not self._welcomed.is_set():
                _log.warning("order_before_welcome", extra={"command": kind})
            elif kind == "heartbeat_ack":
                self._take_ack(message.heartbeat_ack)
            elif kind == "attempt_end_stored":
                self._table.mark_stored(key_from_message(message.attempt_end_stored.key))
            elif kind == "read_log":
                self._log_streams.start(message.read_log, self._outbound)
            elif kind == "send_checkpoint":
                if self._transfers is not None:
                    self._transfers.send(message.send_checkpoint)
            elif kind is not None:
                await self._commands.put(message)

    def _take_welcome(self, welcome: messages.Welcome) -> None:
        """Obey this scheduler from now on, if it is the one of this node's cluster."""
        position = position_from_message(welcome.position) if welcome.HasField("position") else None
        self._membership.join(position, welcome.ancestor_ids, is_free=is_free(self._table, self._membership))
        self._rules = welcome
        if self._transfers is not None and self._stub is not None:
            self._transfers.begin(self._stub, welcome.session_secret)
        self._welcomed.set()
        self._on_welcome(welcome.session_secret)

    def _take_ack(self, ack: messages.HeartbeatAck) -> None:
        if ack.HasField("position"):
            self._membership.advance(position_from_message(ack.position))
        self._windows.mark_delivered(self._sent_windows.pop(ack.sequence, frozenset()))
        sent = self._sent_beats.get(ack.sequence)
        if sent is not None:
            self._confirmed = max(self._confirmed, sent)
            # Counted from when the heartbeat left: the scheduler's own count can only be later.
            lease = Lease.since(sent, self._rules)
            self._table.renew(map(key_from_message, ack.renewed), lease)
            # What is prepared ends by itself where it is ordered no more: after a new Hello nothing is ordered yet.
            self._table.renew(self._prepared, lease)
            note_ended_parts(self._table, {key_from_message(one.key): one.parts for one in ack.ended_parts})

    async def _beat(self) -> None:
        async with asyncio.timeout(_WELCOME_TIMEOUT_S):
            await self._welcomed.wait()
        sequence = 0
        while boot_ms() - self._heard_ms < max(self._rules.lease_ms // 2, _SILENT_BEATS * self._rules.heartbeat_ms):
            sequence += 1
            self._send(messages.ConnectRequest(heartbeat=self._heartbeat(sequence)))
            self._sent_beats[sequence] = Moment.now()
            self._sent_beats.pop(sequence - _SENT_BEATS_KEPT, None)
            self._metrics.heartbeats.inc()
            for attempt in self._table:
                if attempt.end is not None:
                    self.announce_end(attempt.end)
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: until Python 3.12 it loses a cancellation that comes with the news, as of leaving.
                async with asyncio.timeout(max(50, self._rules.heartbeat_ms) / 1000):
                    await self._news.wait()
            self._news.clear()
        _log.warning("scheduler_silent", extra={"since_boot_ms": self._heard_ms})

    def _heartbeat(self, sequence: int) -> messages.Heartbeat:
        held = [item for item in self._table if self._membership.holds(item.key) and not item.is_early]
        states = [(attempt, attempt.state) for attempt in held]
        alive = [(attempt, state) for attempt, state in states if state in _ALIVE]
        readings = self._read_gpus()
        observations = [attempt.observe(readings) for attempt, _ in alive]
        self._windows.add(observations, readings, boot_ms())
        due = self._windows.due()
        self._sent_windows[sequence] = frozenset(window.window_id for window in due)
        self._sent_windows.pop(sequence - _SENT_BEATS_KEPT, None)
        return messages.Heartbeat(
            sequence=sequence,
            attempts=[
                observation_to_message(observation, state, attempt.rank_times.read())
                for observation, (attempt, state) in zip(observations, alive, strict=True)
            ],
            gpus=[reading_to_message(reading) for reading in readings],
            measurement_windows=[window_to_message(window) for window in due],
            wall_clock_ms=wall_ms(),
        )

    async def _obey(self) -> None:
        """Carry out orders one after the other; each leaves one line for the audit."""
        while True:
            message = await self._commands.get()
            name = message.WhichOneof("message") or ""
            key = key_from_message(getattr(message, name).key)
            try:
                await self._carry_out(message, name)
            except CommandRefusedError as refusal:
                self._refuse(key, name, refusal)
            except (OSError, ValueError) as error:
                if name == "stop_job":
                    # A refusal reads as the end of an attempt, which runs on: its GPUs would be given away.
                    _log.warning("stop_delayed", extra={**key.fields(), "reason": str(error)})
                    asyncio.get_running_loop().call_later(_STOP_RETRY_S, self._take_again, message)
                    continue
                self._refuse(key, name, CommandRefusedError("NODE_FAILURE", f"this node could not do it: {error}"))
            else:
                _log.info("command_performed", extra={**key.fields(), "command": name})

    def _take_again(self, order: messages.ConnectResponse) -> None:
        # A full queue: the scheduler repeats with the next Hello what is outstanding.
        with contextlib.suppress(asyncio.QueueFull):
            self._commands.put_nowait(order)

    async def _carry_out(self, message: messages.ConnectResponse, name: str) -> None:
        key = key_from_message(getattr(message, name).key)
        if not self._membership.holds(key):
            raise CommandRefusedError("UNKNOWN_CLUSTER", f"{key.directory_name} is of a cluster that this node left")
        orders: Mapping[str, Callable[[], None]] = {
            "stop_job": lambda: self._table.stop(
                key_from_message(message.stop_job.key), message.stop_job.cause, message.stop_job.grace_ms
            ),
            "pause_job": lambda: self._table.pause(
                key_from_message(message.pause_job.key), message.pause_job.cause, message.pause_job.paused_ms_max
            ),
            "resume_job": lambda: self._table.resume(key_from_message(message.resume_job.key)),
            "checkpoint_job": lambda: self._table.checkpoint(key_from_message(message.checkpoint_job.key)),
        }
        if name == "launch_job":
            await self._launch(message.launch_job)
            return
        if name == "prepare_job":
            self._prepare(message.prepare_job)
            return
        fetch = self._fetches.pop(key, None) if name == "stop_job" else None
        if fetch is not None and fetch.cancel() and self._give_up_early(key):
            # It was launched, and is no attempt yet that could tell of its end.
            raise CommandRefusedError("NO_SUCH_ATTEMPT", f"the launch of {key.directory_name} was given up")
        # A full disk must not keep a job running that shall end.
        with contextlib.suppress(OSError):
            self._membership.store()
        orders[name]()

    async def _launch(self, message: messages.LaunchJob) -> None:
        request = launch_from_message(message)
        if message.HasField("position"):
            self._membership.take_order(position_from_message(message.position))
        if (begun := self._begun(request.key)) is not None:
            # Whatever fails below, a refusal would read as the end of what runs here: its GPUs would be given away.
            begun.announced = False
            if begun.end is not None:
                self.announce_end(begun.end)
            return
        # Before anything is started: a scheduler that does not know of this order must not be obeyed later.
        self._membership.store()
        if self._transfers is not None and self._transfers.may_fetch(request):
            # Other orders go on meanwhile; one that was repeated is carried out once.
            self._fetches = {one: task for one, task in self._fetches.items() if not task.done()}
            if request.key not in self._fetches:
                self._fetches[request.key] = asyncio.create_task(self._fetch_and_start(request, self._transfers))
            return
        root = self._table.directory.checkpoints
        granted = self._membership.checkpoint_directories(root, request.key.job_id, request.granted)
        own = checkpoint_directory(root, request.key.job_id, request.key.fence, request.key.incarnation_id)
        await self._start(request, await asyncio.to_thread(find_resumable, request.gang_part, own, granted))

    async def _fetch_and_start(self, request: LaunchRequest, transfers: CheckpointTransfers) -> None:
        try:
            resume, notes = await transfers.find_resumable(request)
            await self._start(replace(request, notes=notes), resume)
        except CommandRefusedError as refusal:
            self._refuse(request.key, "launch_job", refusal)
        except (OSError, ValueError) as error:
            failure = CommandRefusedError("NODE_FAILURE", f"this node could not do it: {error}")
            self._refuse(request.key, "launch_job", failure)

    async def _start(self, request: LaunchRequest, resume: Checkpoint | None) -> None:
        # Two on one device would slow each other down, and what was measured would be worth nothing.
        await self._make_way()
        # The transit time of the order is unknown: the Hello, or the newest confirmed heartbeat, left before it.
        self._prepared.discard(request.key)
        attempt = self._table.launch(request, resume, Lease.since(self._confirmed, self._rules))
        if attempt.end is not None:
            self.announce_end(attempt.end)

    def _begun(self, key: AttemptKey) -> Attempt | None:
        return next((one for one in self._table if one.key.is_meant_by(key) and not one.is_early), None)

    def _prepare(self, message: messages.PrepareJob) -> None:
        """Start an attempt early; the order to launch it follows, or one to stop it."""
        self._membership.store()
        request = launch_from_message(message.launch, is_early=True)
        self._table.prepare(request, Lease.since(self._confirmed, self._rules))
        self._prepared.add(request.key)

    def _give_up_early(self, key: AttemptKey) -> bool:
        """End what was started early for a launch that will not be; whether there was any."""
        self._prepared.discard(key)
        return give_up_early(self._table, key)

    def _refuse(self, key: AttemptKey, name: str, refusal: CommandRefusedError) -> None:
        _log.warning("command_refused", extra={**key.fields(), "command": name, "reason": str(refusal)})
        self._metrics.refusals.labels(refusal.code).inc()
        if name == "prepare_job":
            self._end_preparation(key, refusal)
            return
        if name == "launch_job":
            self._table.refused_launches.note(key, refusal)
            self._give_up_early(key)
        refused = messages.CommandRefused(key=key_to_message(key), code=refusal.code, message=refusal.message)
        self._send(messages.ConnectRequest(command_refused=refused))


def is_free(table: AttemptTable, membership: ClusterMembership) -> bool:
    """Whether nothing of the present cluster runs or is kept here, so that the node may join another one by itself."""
    return not any(True for _ in table) and not membership.has_checkpoints(table.directory.checkpoints)
