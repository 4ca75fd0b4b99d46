"""A large state as JSON text, written entry by entry: one call to `json` would stop every thread until it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from scheduler_service.core.engine_snapshot import Pace

# Levels whose entries are written one by one: the snapshot, its engine, the state, its tables.
_LEVELS = 4
_encode_whole = json.JSONEncoder(separators=(",", ":")).encode


def write_json(value: object, pace: Pace = iter) -> bytes:
    """Return what `json.dumps` with the shortest separators returns, encoded; piece by piece, at a pace.

    Raises:
        TypeError: A value or a key is nothing that JSON knows.
    """
    return "".join(pace(_pieces(value, _LEVELS))).encode()


def _pieces(value: object, levels: int) -> Iterator[str]:
    if not (levels and value and isinstance(value, dict | list | tuple)):
        yield _encode_whole(value)
        return
    is_table = isinstance(value, Mapping)
    yield "{" if is_table else "["
    for number, entry in enumerate(value):
        if number:
            yield ","
        if is_table:
            # A table of one entry says how `json` writes a key that is no text.
            yield _encode_whole({entry: 0})[1:-2]
            yield from _pieces(value[entry], levels - 1)
        else:
            yield from _pieces(entry, levels - 1)
    yield "}" if is_table else "]"
