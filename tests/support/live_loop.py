"""A live loop whose log forgets everything with its process, and whose policy lets every job wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from scheduler_service.adapters.storage.event_log import (
    REMEMBERED_REQUESTS,
    AnsweredRequest,
    LogRecord,
    StoredEvent,
    StoredSnapshot,
)
from scheduler_service.adapters.storage.recovery import JobNumbers, freeze_state
from scheduler_service.adapters.system_clock import SystemClock
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision, Hold
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.core.records import Reason
from scheduler_service.errors import StateFullError
from scheduler_service.live_loop import LiveLoop


class MemoryEventLog:
    """Keeps facts in a list; see `EventLog` for the contract."""

    def __init__(self) -> None:
        self._events: list[StoredEvent] = []
        self._requests: dict[str, AnsweredRequest] = {}
        self._snapshot: StoredSnapshot | None = None
        self._last_sequence = 0
        self._turn = threading.Lock()

    def append(self, records: Sequence[LogRecord]) -> int:
        """Store all records; see `EventLog.append`."""
        with self._turn:
            for record in records:
                self._last_sequence += 1
                self._events.append(StoredEvent(sequence=self._last_sequence, event=record.event))
                if record.request is not None:
                    self._requests[record.request.request_id] = record.request
            while len(self._requests) > REMEMBERED_REQUESTS:
                del self._requests[next(iter(self._requests))]
            return self._last_sequence

    def last_sequence(self) -> int:
        """Return the newest sequence; see `EventLog.last_sequence`."""
        return self._last_sequence

    def read_from(self, sequence: int) -> Iterator[StoredEvent]:
        """Yield stored events; see `EventLog.read_from`."""
        return iter([stored for stored in self._events if stored.sequence >= sequence])

    def silences_from(self, sequence: int) -> Mapping[int, PolicySilenced]:
        """Return the silences of policies; see `EventLog.silences_from`."""
        events = (stored.event for stored in self.read_from(sequence))
        return {event.sequence: event for event in events if isinstance(event, PolicySilenced)}

    def store_snapshot(self, snapshot: StoredSnapshot, *, retained_events: int) -> None:
        """Keep the snapshot, drop old events; see `EventLog.store_snapshot`."""
        with self._turn:
            self._snapshot = snapshot
            first_kept = min(snapshot.sequence, self._last_sequence - retained_events) + 1
            self._events = [stored for stored in self._events if stored.sequence >= first_kept]

    def latest_snapshot(self) -> StoredSnapshot | None:
        """Return the newest snapshot; see `EventLog.latest_snapshot`."""
        return self._snapshot

    def answered_requests(self) -> Sequence[AnsweredRequest]:
        """Return the remembered requests; see `EventLog.answered_requests`."""
        return list(self._requests.values())

    def close(self) -> None:
        """Do nothing; there is nothing to release."""


class FillingLog(MemoryEventLog):
    """A log whose disk is full while `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.appends: list[int] = []

    def append(self, records: Sequence[LogRecord]) -> int:
        if self.is_full:
            raise StateFullError("the disk is full; free some space")
        self.appends.append(len(records))
        return super().append(records)


class HoldEverything:
    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        return [Hold(job_id=job.request.job_id, reason=Reason(code="HELD")) for job in view.pending]


def make_policy(name: str, parameters: Mapping[str, object]) -> Policy:
    return HoldEverything()


def make_engine() -> SchedulerEngine:
    return SchedulerEngine(make_policy=make_policy, policy="hold")


def make_loop(log: MemoryEventLog, engine: SchedulerEngine | None = None) -> LiveLoop:
    """A loop over an empty log that does nothing of what the engine orders."""
    engine = engine or make_engine()
    return LiveLoop(
        engine=engine,
        log=log,
        clock=SystemClock(),
        perform=lambda _: None,
        sequence=0,
        freeze_state=lambda: freeze_state(engine, JobNumbers()),
        snapshot_every_events=10**6,
    )


def run(
    work: Callable[[LiveLoop], Awaitable[None]], log: MemoryEventLog, engine: SchedulerEngine | None = None
) -> LiveLoop:
    """Work next to a running loop; returns the loop once both have ended."""

    async def main() -> LiveLoop:
        loop = make_loop(log, engine)
        running = asyncio.create_task(loop.run())
        try:
            await asyncio.wait_for(work(loop), timeout=90)
        finally:
            loop.close()
            await asyncio.wait_for(running, timeout=90)
        return loop

    return asyncio.run(main())
