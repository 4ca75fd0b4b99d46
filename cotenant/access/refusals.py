"""Tells the log of refused callers, without letting them fill it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from cotenant.access.callers import AccessError

_INTERVAL_NS: Final = 60_000_000_000
_METHODS_MAX: Final = 100


class RefusalLog:
    """One warning a minute and method, with the number of refusals since the one before; safe for many threads.

    Args:
        log: Where it is written.
        now_ns: A clock that only goes forward.
    """

    def __init__(self, log: logging.Logger, *, now_ns: Callable[[], int]) -> None:
        self._log = log
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._told_at_ns: dict[str, int] = {}
        self._untold: dict[str, int] = {}

    def note(self, method: str, error: AccessError, *, peer: str) -> None:
        """Counts a refusal and writes it unless that was done a moment ago."""
        with self._lock:
            count = self._untold.get(method, 0) + 1
            now_ns = self._now_ns()
            is_due = now_ns - self._told_at_ns.get(method, -_INTERVAL_NS) >= _INTERVAL_NS
            if not is_due:
                self._untold[method] = count
                return
            if len(self._told_at_ns) >= _METHODS_MAX:
                self._told_at_ns.clear()
            self._told_at_ns[method] = now_ns
            self._untold.pop(method, None)
        self._log.warning(
            "call_refused", extra={"method": method, "peer": peer, "reason": error.message, "count": count}
        )
