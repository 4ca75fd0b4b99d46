"""Whether a caller still waits for an answer that takes long: a thread cannot be ended, it has to look."""

from __future__ import annotations

from types import TracebackType


class CallerLeftError(Exception):
    """No caller waits for the answer any more."""


class WaitingCaller:
    """A caller that waits inside `with`; one that leaves it by an exception has gone away.

    Attributes:
        has_left: Read by the thread that works for them.
    """

    __slots__ = ("has_left",)

    def __init__(self) -> None:
        self.has_left = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        self.has_left = kind is not None
