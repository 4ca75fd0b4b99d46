"""Appointments in simulated time; equal instants in a fixed order, so that equal runs are equal."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class EventPriority(IntEnum):
    """What comes first at one instant: what frees GPUs before what wants them."""

    END = 0
    START = 1
    REPORT = 2
    NODE = 3
    SUBMISSION = 4
    TIMER = 5
    FAILURE = 6


class EventQueue:
    """Appointments: what is called when."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._waiting = [0] * len(EventPriority)

    def add(self, at_ms: int, rank: EventPriority, act: Callable[[Any], None], subject: object) -> None:
        """Make an appointment."""
        self._serial += 1
        self._waiting[rank] += 1
        heappush(self._entries, (at_ms, rank, self._serial, act, subject))

    def pop(self) -> tuple[int, Callable[[Any], None], Any]:
        """Return the next appointment: instant, function to call, arguments."""
        at_ms, rank, _, act, subject = heappop(self._entries)
        self._waiting[rank] -= 1
        return at_ms, act, subject

    def has_end_at(self, at_ms: int) -> bool:
        """Return whether an attempt ends at an instant, which is not later than any appointment that is left."""
        while self._entries and self._entries[0][0] == at_ms and self._entries[0][1] is EventPriority.END:
            attempt, turn = self._entries[0][4]
            if attempt.turn == turn:
                return True
            self.pop()
        return False

    def __bool__(self) -> bool:
        return bool(self._entries)

    def count(self, rank: EventPriority) -> int:
        """Return the appointments of a rank."""
        return self._waiting[rank]
