"""The one schema of the log lines of all programs."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

KEYS = ["ts", "level", "program", "event", "fields"]
EVENT = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
LINE_CHARACTERS_MAX = 20_000


def read_line(text: str, program: str) -> dict[str, Any]:
    """Return a line that a program wrote; fails where it is not of the schema."""
    line: dict[str, Any] = json.loads(text, parse_constant=lambda name: _refuse(f"{name} is not JSON"))
    assert list(line) == KEYS, text
    assert datetime.fromisoformat(line["ts"]).utcoffset() == timedelta(0), text
    assert line["level"] in ("debug", "info", "warning", "error"), text
    assert line["program"] == program, text
    assert EVENT.fullmatch(line["event"]), text
    assert isinstance(line["fields"], dict), text
    assert len(text) <= LINE_CHARACTERS_MAX, text
    return line


def read_lines(text: str, program: str) -> list[dict[str, Any]]:
    """Return all lines of a log."""
    return [read_line(line, program) for line in text.splitlines()]


def _refuse(message: str) -> None:
    raise AssertionError(message)
