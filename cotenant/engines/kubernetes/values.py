"""Values in the API server's JSON: absent fields, and quantities such as `500m` and `8Gi`. Users wrote them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

Row = Mapping[str, Any]
NUMBER_MAX: Final = float(2**62)
_QUANTITY = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?)([numkMGTPE]|[KMGTPE]i)?")
_FACTORS: Final[Mapping[str, float]] = MappingProxyType(
    {"": 1, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3}
    | {letter: 10.0 ** (6 + 3 * place) for place, letter in enumerate("MGTPE")}
    | {f"{letter}i": 1024.0 ** (1 + place) for place, letter in enumerate("KMGTPE")}
)
_NOTHING: Final[Row] = MappingProxyType({})


def row_of(value: object, *names: str) -> Row:
    """Return the object that lies below some names; an empty one where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else _NOTHING


def rows_of(value: object, *names: str) -> list[Row]:
    """Return the objects in the list below some names."""
    found = row_of(value, *names[:-1]).get(names[-1]) if names else value
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def text_of(value: object, *names: str) -> str:
    """Return the text below some names; empty where there is none."""
    found = row_of(value, *names[:-1]).get(names[-1])
    return found if isinstance(found, str) else ""


def texts_of(value: object, *names: str) -> list[str]:
    """Return the texts in the list below some names."""
    found = row_of(value, *names[:-1]).get(names[-1])
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def quantity_of(value: object) -> float:
    """Return a quantity, from 0; what is none counts as 0."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return 0.0
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return 0.0
    number = float(match[1]) * _FACTORS[match[2] or ""]
    return min(max(number, 0.0), NUMBER_MAX) if math.isfinite(number) else NUMBER_MAX


def quantities_of(value: object, *names: str) -> dict[str, float]:
    """Return the quantities below some names, by resource."""
    return {str(name): quantity_of(amount) for name, amount in row_of(value, *names).items()}


def instant_ms(text: str) -> int:
    """Return an instant such as 2026-11-23T06:00:00Z in ms since 1970; 0 where it is none."""
    try:
        at = datetime.fromisoformat(text)
        return max(int(at.timestamp() * 1_000), 0) if at.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return 0
