"""One JSON object per line on standard error: an event, its attempt, its facts."""

from __future__ import annotations

import contextlib
import json
from typing import TextIO

from cotenant_agent.records import AttemptKey
from cotenant_agent.system_clock import wall_ms

_VALUE_LIMIT = 2000


class StructuredLog:
    """Writes to one stream; never raises because of what it is told, or because nobody takes it."""

    def __init__(self, stream: TextIO, node_id: str) -> None:
        self._stream = stream
        self._node_id = node_id

    def write(self, event: str, *, level: str = "info", key: AttemptKey | None = None, **facts: object) -> None:
        """Add a line.

        Args:
            event: what happened, snake_case.
            level: info, warning or error; audit for orders of the scheduler.
            key: the attempt that it is about.
            facts: anything that JSON can hold; texts are cut at 2,000 characters.
        """
        record: dict[str, object] = {"at_ms": wall_ms(), "level": level, "node_id": self._node_id, "event": event}
        if key is not None:
            record |= {"job_id": key.job_id, "attempt": key.attempt, "fence": key.fence}
        record |= {name: value[:_VALUE_LIMIT] if isinstance(value, str) else value for name, value in facts.items()}
        # A line that the disk does not take is lost; the jobs of this node are worth more.
        with contextlib.suppress(OSError):
            self._stream.write(json.dumps(record, default=str) + "\n")
            self._stream.flush()
