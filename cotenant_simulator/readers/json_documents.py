"""JSON that other programs wrote, read whole: bounded, and values of any type taken for what they are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from cotenant_simulator.errors import TraceError

Row = Mapping[str, Any]
FILE_BYTES_MAX: Final = 1 << 27
NOTHING: Final[Row] = MappingProxyType({})


def read_document(path: Path, origin: str) -> object:
    """Return what a file holds.

    Args:
        path: The file.
        origin: The command that writes such a file.

    Raises:
        TraceError: It cannot be read, is too large, or is no JSON.
    """
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise TraceError(path, f"is no JSON ({error}); write it with {origin}") from error


def read_lines(path: Path, origin: str) -> Iterator[object]:
    """Yield what each line of a file holds; None = the line is no JSON.

    Raises:
        TraceError: The file cannot be read, or is too large.
    """
    text = _read(path)
    if not text.strip():
        raise TraceError(path, f"is empty; write it with {origin}")
    for line in text.splitlines():
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None


def row_of(value: object) -> Row:
    """Return an object; what is none is an empty one."""
    return value if isinstance(value, Mapping) else NOTHING


def text_of(row: Row, *names: str) -> str:
    """Return the first of some fields that holds a text, at most 200 characters; empty = none does."""
    found = (row.get(name) for name in names)
    return next((value[:200] for value in found if isinstance(value, str) and value), "")


def number_of(value: object) -> float | None:
    """Return a finite number, also one written as a text; None = it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise TraceError(
                path, f"is larger than {FILE_BYTES_MAX >> 20} MiB; ask about fewer days, or in longer steps"
            )
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error.strerror or error}); name a file") from error
