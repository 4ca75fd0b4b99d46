"""The fields of the rows of a snapshot as lists, so that checking and reading ask each row once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from operator import attrgetter, methodcaller
from typing import Any

from google.protobuf.message import Message


class RowColumns:
    """Some rows of one type.

    Args:
        rows: The messages; they do not change any more.
        merged: All of them in one message, each as `SerializeToString` writes it: what it does not state none of them
            does, and of a row with forty fields most state seven. None = that is not at hand.

    Attributes:
        rows: The messages.
    """

    def __init__(self, rows: Iterable[Message], merged: Message | None = None) -> None:
        self.rows: Sequence[Any] = [*rows]
        self._columns: dict[str, Sequence[Any]] = {}
        self._stated: dict[str, Sequence[bool]] = {}
        self._parts: dict[str, RowColumns] = {}
        self._unstated = {} if merged is None else _unstated_fields(merged)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.rows)

    def __getitem__(self, name: str) -> Sequence[Any]:
        """Return the values of a field, a row after the other."""
        known = self._columns.get(name)
        if known is None:
            default = self._unstated.get(name)
            values = map(attrgetter(name), self.rows) if default is None else repeat(default, len(self.rows))
            known = self._columns[name] = [*values]
        return known

    def parts(self, name: str) -> RowColumns:
        """Return the messages in a repeated field of all rows, those of a row after those of the other."""
        known = self._parts.get(name)
        if known is None:
            known = self._parts[name] = RowColumns(chain.from_iterable(self[name]))
        return known

    def has(self, name: str) -> Sequence[bool]:
        """Return whether a row states a field that knows the difference, a row after the other."""
        known = self._stated.get(name)
        if known is None:
            is_stated = map(methodcaller("HasField", name), self.rows)
            known = self._stated[name] = [*(repeat(False, len(self.rows)) if name in self._unstated else is_stated)]
        return known

    def may_state(self, name: str) -> bool:
        """Say whether a row may state a field; where it is known that none does its column tells nothing."""
        return name not in self._unstated

    def stating_any(self, names: Iterable[str], optional_names: Iterable[str] = ()) -> Sequence[bool]:
        """Return by row whether it states one of some fields.

        Args:
            names: Fields that are stated where they are not as by default.
            optional_names: Fields that know the difference.
        """
        columns = [*map(self.__getitem__, filter(self.may_state, names))]
        columns += map(self.has, filter(self.may_state, optional_names))
        return [*map(any, zip(*columns, strict=True))] if columns else [False] * len(self.rows)


def _unstated_fields(merged: Message) -> Mapping[str, Any]:
    """Return the fields that a message does not state, each with the value that it then has; None = a message."""
    kind: Any = type(merged)
    stated = {field.name for field, _ in merged.ListFields()}
    return {name: value for name, value in _values_unstated(kind).items() if name not in stated}


@cache
def _values_unstated(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a class, which mypy does not take for hashable
    return {one.name: () if one.is_repeated else one.default_value for one in kind.DESCRIPTOR.fields}
