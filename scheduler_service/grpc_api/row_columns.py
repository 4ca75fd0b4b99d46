"""The fields of the rows of a snapshot as lists, so that checking and reading ask each row once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, methodcaller
from typing import Any

from google.protobuf.message import Message


class RowColumns:
    """Some rows of one type.

    Args:
        rows: The messages; they do not change any more.

    Attributes:
        rows: The messages.
    """

    def __init__(self, rows: Iterable[Message]) -> None:
        self.rows: Sequence[Any] = [*rows]
        self._columns: dict[str, Sequence[Any]] = {}
        self._stated: dict[str, Sequence[bool]] = {}

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.rows)

    def __getitem__(self, name: str) -> Sequence[Any]:
        """Return the values of a field, a row after the other."""
        known = self._columns.get(name)
        if known is None:
            known = self._columns[name] = [*map(attrgetter(name), self.rows)]
        return known

    def has(self, name: str) -> Sequence[bool]:
        """Return whether a row states a field that knows the difference, a row after the other."""
        known = self._stated.get(name)
        if known is None:
            known = self._stated[name] = [*map(methodcaller("HasField", name), self.rows)]
        return known
