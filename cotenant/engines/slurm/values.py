"""Values in Slurm's JSON, whose form changes between versions: plain, or as objects and lists since 23.11."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number_of(row: Mapping[str, Any], name: str) -> int:
    """Return a whole number, 0 where there is none."""
    value = row.get(name)
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite", False) else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 0
    return int(min(max(value, 0), 2**62))


def text_of(row: Mapping[str, Any], name: str) -> str:
    """Return a text, empty where there is none."""
    value = row.get(name)
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    return value if isinstance(value, str) else ""


def words_of(row: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return flags and states, which are a list or one text with + or , between them."""
    text = text_of(row, name)
    return frozenset(part.strip().upper() for part in text.replace("+", ",").split(",") if part.strip())


def rows_of(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the objects of a table."""
    rows = document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
