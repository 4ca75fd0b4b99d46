"""Log lines as JSON on stderr: one object per line, bounded in length."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

LINE_CHARACTERS_MAX: Final = 4_000
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes level, logger, message and every extra field."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line."""
        content: dict[str, object] = {
            "at_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "message": record.getMessage()[:LINE_CHARACTERS_MAX],
            "logger": record.name,
        }
        content.update({name: value for name, value in vars(record).items() if name not in _OWN_FIELDS})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)[-LINE_CHARACTERS_MAX:]
        return json.dumps(content, default=str)[: 2 * LINE_CHARACTERS_MAX]


def start_logging(level: str) -> None:
    """Sends this program's log to stderr.

    Args:
        level: debug | info | warning | error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
