"""The log of every program: JSON lines on standard error, each with exactly ts, level, program, event and fields.

Programs log as Python does: `_log.info("node_joined", extra={"node_id": ...})`; the message is the event's name, the
extra is its fields. Lines are bounded, whatever they are given.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")
VALUE_CHARACTERS_MAX: Final = 2_000
TRACEBACK_CHARACTERS_MAX: Final = 4_000
LIBRARY_EVENT: Final = "library_message"
"""Event of what a library logs: its text and its logger stand in the fields."""
_OWN: Final = frozenset(
    {"cotenant", "predictor_service", "scheduler_service", "cotenant_agent", "cotenant_simulator", "cotenant_profiler"}
)
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
_log = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """Writes one line for a record.

    Args:
        program: predictor, scheduler or agent.
        fields: Stand in every line's fields, e.g. the node's id.
    """

    def __init__(self, program: str, fields: Mapping[str, object] = _NOTHING) -> None:
        super().__init__()
        self._program = program
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = self._fields | {name: value for name, value in vars(record).items() if name not in _STANDARD}
        event = record.getMessage()
        if record.name.partition(".")[0] not in _OWN:
            fields |= {"logger": record.name, "message": event}
            event = LIBRARY_EVENT
        logged = {str(name): bounded(value) for name, value in fields.items()}
        if record.exc_info:
            # The end states what went wrong, the beginning only the callers.
            logged["traceback"] = self.formatException(record.exc_info)[-TRACEBACK_CHARACTERS_MAX:]
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": LEVELS[min(max(record.levelno // 10 - 1, 0), 3)],
            "program": self._program,
            "event": event[:VALUE_CHARACTERS_MAX],
            "fields": logged,
        }
        return json.dumps(line, default=str, allow_nan=False)


class LineHandler(logging.StreamHandler[TextIO]):
    """Loses a line that its stream does not take: the work is worth more, and a complaint would not be JSON."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (named by logging)
        """Does nothing."""


def bounded(value: object) -> object:
    """Returns a field's value as JSON can hold it, at most VALUE_CHARACTERS_MAX characters long."""
    if isinstance(value, str):
        return value[:VALUE_CHARACTERS_MAX]
    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # not JSON: nan, a key that is no text, a list that holds itself
        return _described(value)[:VALUE_CHARACTERS_MAX]
    return value if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX]


def start_logging(
    program: str, level: str, *, fields: Mapping[str, object] = _NOTHING, is_service: bool = False
) -> None:
    """Sends the log of this process to standard error.

    Args:
        program: What every line names as its program.
        level: One of LEVELS.
        fields: Stand in every line's fields.
        is_service: Whether standard error is read only as a log: then warnings of Python and exceptions that
            were not caught are lines of it too.
    """
    handler = LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(program, fields))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if is_service:
        logging.captureWarnings(True)
        sys.excepthook = _log_exception
        threading.excepthook = _log_exception_of_thread


def _described(value: object) -> str:
    try:
        return str(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"<{type(value).__name__}>"


def _log_exception(kind: type[BaseException], error: BaseException, found: TracebackType | None) -> None:
    _log.error("uncaught_exception", exc_info=(kind, error, found))


def _log_exception_of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None:
        _log.error("uncaught_exception", exc_info=(found.exc_type, found.exc_value, found.exc_traceback))
