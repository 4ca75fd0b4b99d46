"""The port to durable storage: what was stored is authoritative, whatever the process remembers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from scheduler_service.core.events import Event
from scheduler_service.core.policy_events import PolicySilenced

# Requests whose answers are remembered; a client that repeats a request does so within minutes.
REMEMBERED_REQUESTS = 100_000
TOGETHER_MAX = 1_000
"""Facts that are decided upon at once: a whole array; more of them would let a decision wait for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """A mutation that was answered, so that its repetition gets the same answer.

    Attributes:
        request_id: Chosen by the caller.
        body_sha256: Hash over method and body.
        answer: What the answer is built from, e.g. the job id.
    """

    request_id: str
    body_sha256: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One fact, with the request that caused it if there was one; both are stored or neither."""

    event: Event
    request: AnsweredRequest | None = None


def told_together(records: Sequence[LogRecord]) -> list[LogRecord]:
    """Return the records of one append with the word at all but the last that others follow, at most so many.

    Their facts are decided upon once, now and in a replay: that word is stored with them.
    """
    last = len(records)
    return [
        replace(record, event=replace(record.event, is_followed=True))
        if number % TOGETHER_MAX and number < last
        else record
        for number, record in enumerate(records, start=1)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """A fact with its place in the log; the first place is 1."""

    sequence: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """The engine's state after the event at `sequence`, as JSON-ready data."""

    sequence: int
    state: Mapping[str, object]


class EventLog(Protocol):
    """Stores facts in order. One writer; every method blocks. A snapshot may be stored while facts are appended."""

    def append(self, records: Sequence[LogRecord]) -> int:
        """Store all records or none, durably.

        Returns:
            The sequence of the last one.

        Raises:
            StateFullError: No space is left; nothing was stored, and a later call may succeed.
            StateUnwritableError: The write failed otherwise; nothing was stored.
        """

    def last_sequence(self) -> int:
        """Return the sequence of the newest event ever stored; 0 when there was none."""

    def read_from(self, sequence: int) -> Iterator[StoredEvent]:
        """Yield the events at `sequence` and after, in order.

        Raises:
            StateDamagedError: An event in between is missing or unreadable.
        """

    def silences_from(self, sequence: int) -> Mapping[int, PolicySilenced]:
        """Return what `read_from` yields of this kind, by the event upon which the policy did not answer."""

    def store_snapshot(self, snapshot: StoredSnapshot, *, retained_events: int) -> None:
        """Store a snapshot and forget older ones, and events before it beyond the newest `retained_events`."""

    def latest_snapshot(self) -> StoredSnapshot | None:
        """Return the newest snapshot, or None."""

    def answered_requests(self) -> Sequence[AnsweredRequest]:
        """Return the newest `REMEMBERED_REQUESTS` answered requests, oldest first."""

    def close(self) -> None:
        """Release the storage; no method may be called afterwards."""
