"""The threads that answer calls, and the bounded queue before them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final

from predictor_service.errors import OverloadedError
from predictor_service.grpc_api.shared_core import SharedCore
from predictor_service.grpc_api.stream_guard import StreamGuard

WAITING_MAX: Final = 256
_RETRY_MS_MIN: Final = 50
_RETRY_MS_MAX: Final = 5_000
_PAST_WEIGHT: Final = 0.95

_logger = logging.getLogger(__name__)


class QueuedCall:
    """A queued call. It reports when it has ended, which is all that gRPC asks of the future that an executor returns.

    A whole future costs every call a lock and a condition that no thread waits for: 6 microseconds instead of 0.5.

    Args:
        call: What to run.
        arguments: What to run it with.
    """

    __slots__ = ("_arguments", "_call", "_callbacks", "_has_ended")

    def __init__(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self._callbacks: list[Callable[[QueuedCall], object]] = []
        self._has_ended = False

    def add_done_callback(self, callback: Callable[[QueuedCall], object]) -> None:
        """Has a function called once: when the call has ended, or now if it has."""
        self._callbacks.append(callback)
        if self._has_ended:
            self._tell()

    def run(self) -> None:
        """Runs the call; what it raises goes to the log, because a thread of the queue outlives its calls."""
        try:
            self._call(*self._arguments)
        except Exception:
            _logger.exception("call_raised")
        self._has_ended = True
        self._tell()

    def _tell(self) -> None:
        """Two threads may come here at once: the one that takes a function out of the list calls it."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class AdmissionQueue(ThreadPoolExecutor):
    """Runs calls in order of arrival; those that find the queue full are refused at once.

    A refusal has a thread of its own: a caller learns in a millisecond when to retry, instead of waiting in the
    very queue that is too long. A queued call costs no memory for its message, which gRPC reads only when
    the call begins.

    Args:
        threads: Calls answered at the same time.
        waiting_max: Calls that may wait for a thread.
    """

    def __init__(self, threads: int, waiting_max: int = WAITING_MAX) -> None:
        super().__init__(1)  # never used: gRPC wants an executor of this kind, and asks only what is overridden here
        self._waiting_max = waiting_max
        # A deque counts without a lock: its operations are atomic, and this runs twice in every call.
        self._waiting: deque[None] = deque()
        self._recent_ms = 1.0
        self.core = SharedCore()
        """Where its threads run."""
        self.streams = StreamGuard(max(1, threads // 4))
        """Of its threads, those that may wait for what a caller still sends."""
        self._thread_role = threading.local()
        self._admitted: SimpleQueue[QueuedCall | None] = SimpleQueue()
        self._refused: SimpleQueue[QueuedCall | None] = SimpleQueue()
        self._answering = [threading.Thread(target=self._answer, name=f"call-{n}", daemon=True) for n in range(threads)]
        self._refusing = threading.Thread(target=self._refuse, name="refusal", daemon=True)
        for thread in (*self._answering, self._refusing):
            thread.start()

    @property
    def calls_max(self) -> int:
        """Calls under way and queued at most."""
        return len(self._answering) + self._waiting_max

    def submit(self, call: Callable[..., object], /, *arguments: Any) -> QueuedCall:  # type: ignore[override]  # noqa: ANN401 (whatever gRPC hands over)
        """Puts a call into the queue, or hands it to the thread that refuses."""
        placed = QueuedCall(call, arguments)
        if len(self._waiting) >= self._waiting_max:
            self._refused.put(placed)
        else:
            self._waiting.append(None)
            self._admitted.put(placed)
        return placed

    def check_admitted(self) -> None:
        """Asks, from the thread of a call, whether it may be answered.

        Raises:
            OverloadedError: The queue was full when the call arrived; states when a place is likely.
        """
        if not getattr(self._thread_role, "refuses", False):
            return
        drained_ms = self._recent_ms * self._waiting_max / len(self._answering)
        retry_after_ms = int(min(max(drained_ms, _RETRY_MS_MIN), _RETRY_MS_MAX))
        raise OverloadedError(
            f"{self._waiting_max} requests are waiting already",
            remedy=f"ask again in {retry_after_ms} ms",
            details={"retry_after_ms": str(retry_after_ms)},
        )

    def note_duration(self, duration_ms: float) -> None:
        """Notes how long calls take, for the retry time."""
        self._recent_ms = _PAST_WEIGHT * self._recent_ms + (1 - _PAST_WEIGHT) * duration_ms

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads, each when the calls queued before are answered; gRPC has cancelled calls before."""
        for _ in self._answering:
            self._admitted.put(None)
        self._refused.put(None)
        if wait:
            for thread in (*self._answering, self._refusing):
                thread.join()
        super().shutdown(wait=wait, cancel_futures=cancel_futures)

    def _answer(self) -> None:
        with self.core.entered():
            while (placed := self._admitted.get()) is not None:
                self._waiting.pop()
                placed.run()
                del placed  # a thread that waits keeps no message of its last call

    def _refuse(self) -> None:
        self._thread_role.refuses = True
        with self.core.entered():
            while (placed := self._refused.get()) is not None:
                placed.run()
                del placed
