"""The live loop: facts are stored, then handled; what the engine orders is done; nothing is answered before the commit.

    batch = inbox; log.append(batch); commands = engine.handle(event); perform(command)

Everything that changes the cluster passes here, one batch at a time. The log runs in a thread of its own, so that
reading goes on while the disk works; what gathers meanwhile is the next batch and shares next flush and decision.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from scheduler_service.adapters.handled_lines import identity_of, level_of
from scheduler_service.adapters.storage.event_log import (
    REMEMBERED_REQUESTS,
    AnsweredRequest,
    EventLog,
    LogRecord,
    StoredSnapshot,
    told_together,
)
from scheduler_service.adapters.storage.recovery import apply_event
from scheduler_service.adapters.system_clock import SystemClock, read_monotonic_ns
from scheduler_service.core.commands import Command, WakeAt
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import Event, TimerFired
from scheduler_service.errors import (
    NotReadyError,
    OverloadedError,
    RequestConflictError,
    SchedulerServiceError,
    StandstillError,
    StateUnwritableError,
)

_log = logging.getLogger(__name__)

BATCH_EVENTS_MAX = 256
INBOX_MAX = 10_000
STORAGE_RETRY_S = 0.5  # before the next try when the disk refuses facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a request leads to: a fact to store (None: nothing has to change) and what its answer is built from.

    Attributes:
        earlier: Facts that are stored together with it, all or none, before it.
    """

    event: Event | None
    answer: str
    earlier: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A request that changes the cluster.

    Attributes:
        propose: Looks at the engine when the request's turn comes; may refuse by raising.
        request_id: Empty = every call is a new request.
        body_sha256: Hash over method and body.
    """

    propose: Callable[[], Proposal]
    request_id: str = ""
    body_sha256: str = ""


@dataclass(slots=True, kw_only=True)
class _Entry:
    """Something in the inbox: a fact that must be stored, or a mutation that may be refused."""

    content: Event | Mutation
    done: asyncio.Future[str]
    proposal: Proposal | None = None


class HandledObserver(Protocol):
    """Receives every handled event, e.g. to count and to notify watchers."""

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Called after the engine has handled a stored event."""

    def batch_handled(self) -> None:
        """Called after a batch, when the engine's state may be read as a whole."""


@dataclass(slots=True, kw_only=True)
class LiveLoop:
    """One engine, one log, one inbox.

    Attributes:
        perform: Does a command; must not block and must not raise.
        observers: Notified after every event and batch.
        sequence: Of the newest handled event.
        freeze_state: Returns what encodes the engine's state of this instant, in another thread.
        snapshot_every_events: Distance of snapshots; recovery replays at most about this many events.
        retained_events: Events kept behind a snapshot, for export.
        refusal: Returns why no request may change anything at present; empty = requests may.
    """

    engine: SchedulerEngine
    log: EventLog
    clock: SystemClock
    perform: Callable[[Command], None]
    sequence: int
    freeze_state: Callable[[], Callable[[], Mapping[str, Any]]]
    observers: Sequence[HandledObserver] = ()
    snapshot_every_events: int = 10_000
    retained_events: int = 200_000
    storage_failure: str = ""
    refusal: Callable[[], str] = field(default=lambda: "")
    _answered: dict[str, AnsweredRequest] = field(default_factory=dict)
    _inbox: deque[_Entry] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    _timers: list[int] = field(default_factory=list)
    _snapshot_sequence: int = 0
    _is_closed: bool = False
    _compacting: asyncio.Task[None] | None = None
    _storage: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="event-log"))
    _compaction: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="snapshot")
    )

    def __post_init__(self) -> None:
        self._answered = {request.request_id: request for request in self.log.answered_requests()}
        self._snapshot_sequence = self.sequence
        self._has_room.set()

    # --- the ways in --------------------------------------------------------------------------------------------

    async def mutate(self, mutation: Mutation) -> str:
        """Store and handle what a request leads to.

        Returns:
            The proposal's answer, or the earlier one when the request is repeated.

        Raises:
            RequestConflictError: The request id was used with another body.
            OverloadedError: Too much is waiting.
            StateUnwritableError: Nothing could be stored; nothing has changed.
            StandstillError: This state is not the newest of its cluster.
            SchedulerServiceError: The proposal was refused.
        """
        if refusal := self.refusal():
            raise StandstillError(refusal)
        if len(self._inbox) >= INBOX_MAX:
            raise OverloadedError(f"{INBOX_MAX} facts wait to be stored; try again in a moment")
        return await self._enter(mutation)

    async def store_apart(self, work: Callable[[], None]) -> None:
        """Write what is no event where events are written, after those that are being stored.

        Raises:
            StateUnwritableError: It could not be stored.
        """
        await asyncio.get_running_loop().run_in_executor(self._storage, work)

    def has_answered(self, request_id: str) -> bool:
        """Return whether this request was answered before: its answer stands, whatever has changed since."""
        return request_id in self._answered

    async def tell(self, event: Event) -> None:
        """Store and handle a fact, however long the disk refuses; waits for room, so that senders slow down."""
        while len(self._inbox) >= INBOX_MAX and not self._is_closed:
            self._has_room.clear()
            await self._has_room.wait()
        await self._enter(event)

    def note(self, event: Event) -> None:
        """Hand in a fact without waiting; only for facts whose number is bounded by what the engine asked for."""
        self._enter(event).add_done_callback(_retrieve_exception)

    def _enter(self, content: Event | Mutation) -> asyncio.Future[str]:
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            done.set_exception(NotReadyError("the scheduler is stopping; ask again when it is back"))
            return done
        self._inbox.append(_Entry(content=content, done=done))
        self._arrived.set()
        return done

    # --- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take batches until `close`; ends after the last batch is handled."""
        while not (self._is_closed and not self._inbox):
            await self._arrived.wait()
            self._arrived.clear()
            while self._inbox:
                await self._take_batch()
                self._compact_when_due()
                if self.storage_failure:
                    if self._is_closed:
                        return
                    await asyncio.sleep(STORAGE_RETRY_S)
        if self._compacting is not None:
            await self._compacting

    def close(self) -> None:
        """Take nothing more in; `run` ends."""
        self._is_closed = True
        self._arrived.set()
        self._has_room.set()

    async def _take_batch(self) -> None:
        entries = [self._inbox.popleft() for _ in range(min(len(self._inbox), BATCH_EVENTS_MAX))]
        records, proposed = self._propose(entries)
        if records and not await self._store(records, proposed):
            return
        for entry, record in zip(proposed, records, strict=True):
            self._handle(record)
            if entry is None:
                await asyncio.sleep(0)  # a thousand jobs at once shall not keep agents waiting
        for entry in filter(None, proposed):  # who looks after the answer sees what was decided
            _resolve(entry, entry.proposal.answer if entry.proposal is not None else "")
        if len(self._inbox) < INBOX_MAX:
            self._has_room.set()
        for observer in self.observers:
            observer.batch_handled()

    def _propose(self, entries: Sequence[_Entry]) -> tuple[list[LogRecord], list[_Entry | None]]:
        """Turn a batch into records, with None for all but the last one of an entry.

        Refusals and repetitions are answered here, at once.
        """
        records: list[LogRecord] = []
        proposed: list[_Entry | None] = []
        batch_requests: set[str] = set()
        for entry in entries:
            if isinstance(entry.content, Event):
                made = [LogRecord(event=self._stamped(entry.content))]
            elif entry.content.request_id in batch_requests:
                # The same request is in this batch: the next one will know the answer.
                self._inbox.append(entry)
                continue
            else:
                made = self._records_of(entry, entry.content)
                if not made:
                    continue
                batch_requests.update({entry.content.request_id} - {""})
            records += made
            proposed += [*[None] * (len(made) - 1), entry]
        return told_together(records), proposed

    def _records_of(self, entry: _Entry, mutation: Mutation) -> list[LogRecord]:
        known = self._answered.get(mutation.request_id)
        if known is not None:
            if known.body_sha256 == mutation.body_sha256:
                _resolve(entry, known.answer)
            else:
                _refuse(entry, RequestConflictError(mutation.request_id))
            return []
        try:
            entry.proposal = mutation.propose()
        except SchedulerServiceError as error:
            _refuse(entry, error)
            return []
        if entry.proposal.event is None:
            _resolve(entry, entry.proposal.answer)
            return []
        request = None
        if mutation.request_id:
            request = AnsweredRequest(
                request_id=mutation.request_id, body_sha256=mutation.body_sha256, answer=entry.proposal.answer
            )
        earlier = [LogRecord(event=self._stamped(event)) for event in entry.proposal.earlier]
        return [*earlier, LogRecord(event=self._stamped(entry.proposal.event), request=request)]

    def _stamped(self, event: Event) -> Event:
        return replace(event, at_ms=self.clock.now_ms())

    async def _store(self, records: Sequence[LogRecord], entries: Sequence[_Entry | None]) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(self._storage, self.log.append, records)
        except StateUnwritableError as error:
            self._keep_facts([entry for entry in entries if entry is not None], error)
            return False
        if self.storage_failure:
            _log.warning("storage_recovered")
            self.storage_failure = ""
        for record in records:
            if record.request is not None:
                self._answered[record.request.request_id] = record.request
        while len(self._answered) > REMEMBERED_REQUESTS:
            del self._answered[next(iter(self._answered))]
        return True

    def _keep_facts(self, entries: Sequence[_Entry], error: StateUnwritableError) -> None:
        """Refuse every waiting request; facts have happened, so they stay and are tried again."""
        if not self.storage_failure:
            _log.error("storage_failed", extra={"reason": error.message})
        self.storage_failure = error.message
        waiting = [*entries, *self._inbox]
        self._inbox.clear()
        for entry in waiting:
            if isinstance(entry.content, Mutation):
                _refuse(entry, error)
            else:
                self._inbox.append(entry)

    def _handle(self, record: LogRecord) -> None:
        self.sequence += 1
        event = record.event
        started_ns = read_monotonic_ns()
        commands = apply_event(self.engine, event)
        duration_ns = read_monotonic_ns() - started_ns
        _log.log(
            level_of(event),
            "event_handled",
            extra={"event_id": self.sequence, "kind": type(event).__name__, **identity_of(event)},
        )
        for observer in self.observers:
            observer.event_handled(event, commands, duration_ns=duration_ns)
        self.perform_all(commands)

    def perform_all(self, commands: Sequence[Command]) -> None:
        """Do commands in order; each leaves one log line with the event that caused it."""
        for number, command in enumerate(commands, start=1):
            if isinstance(command, WakeAt):
                if command.at_ms not in self._timers:
                    heapq.heappush(self._timers, command.at_ms)
                continue
            _log.info(
                "command_performed",
                extra={
                    "command_id": f"{self.sequence}.{number}",
                    "kind": type(command).__name__,
                    **identity_of(command),
                },
            )
            self.perform(command)

    def fire_timers(self) -> None:
        """Hand in one TimerFired for all instants that have come."""
        now_ms = self.clock.now_ms()
        is_due = bool(self._timers) and self._timers[0] <= now_ms
        while self._timers and self._timers[0] <= now_ms:
            heapq.heappop(self._timers)
        if is_due:
            self.note(TimerFired(at_ms=0))

    def _compact_when_due(self) -> None:
        """Begin a snapshot while facts go on being stored; one at a time.

        Raises:
            Exception: The one before has failed in a way that is no refusal of the disk.
        """
        if self._compacting is not None and self._compacting.done():
            self._compacting.result()
            self._compacting = None
        if self._compacting is None and self.sequence - self._snapshot_sequence >= self.snapshot_every_events:
            self._compacting = asyncio.create_task(self._compact())

    async def store_snapshot(self) -> None:
        """Store the engine's state and let old events go; a disk that refuses only makes recovery longer."""
        if self._compacting is not None:
            await self._compacting
        await self._compact()

    async def _compact(self) -> None:
        sequence, encode = self.sequence, self.freeze_state()
        self._snapshot_sequence = sequence

        def store() -> None:
            snapshot = StoredSnapshot(sequence=sequence, state=encode())
            self.log.store_snapshot(snapshot, retained_events=self.retained_events)

        try:
            await asyncio.get_running_loop().run_in_executor(self._compaction, store)
        except StateUnwritableError as error:
            _log.warning("snapshot_failed", extra={"reason": error.message})
            return
        _log.info("snapshot_stored", extra={"event_id": sequence})


def _retrieve_exception(done: asyncio.Future[str]) -> None:
    """Mark the outcome as seen; a fact handed in while stopping is sent again by its sender after the restart."""
    if not done.cancelled():
        done.exception()


def _resolve(entry: _Entry, answer: str) -> None:
    if not entry.done.done():
        entry.done.set_result(answer)


def _refuse(entry: _Entry, error: SchedulerServiceError) -> None:
    if not entry.done.done():
        entry.done.set_exception(error)
