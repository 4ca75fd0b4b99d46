"""Calls whose clients send in parts: a silent client holds the thread that waits for the next part."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc

from predictor_service.errors import OverloadedError

STREAM_S: Final = 120.0
"""Enough for the largest graph over 2.5 megabits per second."""
RETRY_AFTER_MS: Final = 1_000


class StreamGuard:
    """Admits few streams at once and ends those that last too long; safe for many threads.

    Args:
        streams_max: At the same time, at least 1.
        stream_s: Longest one, seconds; its caller gets the status CANCELLED.
    """

    def __init__(self, streams_max: int, stream_s: float = STREAM_S) -> None:
        self._free = threading.Semaphore(streams_max)
        self._streams_max = streams_max
        self._stream_s = stream_s

    @contextmanager
    def admitted(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Holds one of the places.

        Raises:
            OverloadedError: None is free.
        """
        if not self._free.acquire(blocking=False):
            raise OverloadedError(
                f"{self._streams_max} others are sending already",
                remedy=f"send again in {RETRY_AFTER_MS} ms",
                details={"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        end = threading.Timer(self._stream_s, context.cancel)
        end.daemon = True
        end.start()
        try:
            yield
        finally:
            end.cancel()
            self._free.release()
