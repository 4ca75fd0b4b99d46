"""An event log that forgets everything with its process: for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scheduler_service.adapters.event_log import (
    REMEMBERED_REQUESTS,
    AnsweredRequest,
    LogRecord,
    StoredEvent,
    StoredSnapshot,
)


class MemoryEventLog:
    """Keeps facts in a list; see `EventLog` for the contract."""

    def __init__(self) -> None:
        self._events: list[StoredEvent] = []
        self._requests: dict[str, AnsweredRequest] = {}
        self._snapshot: StoredSnapshot | None = None
        self._last_sequence = 0

    def append(self, records: Sequence[LogRecord]) -> int:
        """Store all records; see `EventLog.append`."""
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

    def store_snapshot(self, snapshot: StoredSnapshot, *, retained_events: int) -> None:
        """Keep the snapshot, drop old events; see `EventLog.store_snapshot`."""
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
