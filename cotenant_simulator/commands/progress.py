"""A progress bar on stderr, only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from cotenant.system_clock import steady_s

_WIDTH = 30
_SECONDS_BETWEEN = 0.2


class Progress:
    """Shows how many of the jobs have ended.

    Args:
        name: Of the policy.
        total: Jobs.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, max(total, 1)
        self._is_shown = sys.stderr.isatty()
        self._drawn_at_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            sys.stderr.write("\r\033[K")

    def advance(self, ended: int) -> None:
        """Draw the bar anew, at most a few times a second."""
        now_s = steady_s()
        if not self._is_shown or now_s - self._drawn_at_s < _SECONDS_BETWEEN:
            return
        self._drawn_at_s = now_s
        done = _WIDTH * ended // self._total
        sys.stderr.write(f"\r\033[K{self._name} [{'#' * done}{'.' * (_WIDTH - done)}] {ended}/{self._total} jobs")
        sys.stderr.flush()
