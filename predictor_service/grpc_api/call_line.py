"""The threads that answer calls, and the line of bounded length before them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from predictor_service.errors import OverloadedError

WAITING_MAX: Final = 256
_RETRY_MS_MIN: Final = 50
_RETRY_MS_MAX: Final = 5_000
_PAST_WEIGHT: Final = 0.95

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class CallLine(ThreadPoolExecutor):
    """Runs calls in order of arrival; those that find the line full are refused at once.

    A refusal has a thread of its own: a caller learns in a millisecond when to come back, instead of standing in the
    very line that is too long. A call that stands in line costs no memory for its message, which gRPC reads only when
    the call begins.

    Args:
        threads: Calls answered at the same time.
        waiting_max: Calls that may wait for a thread.
    """

    def __init__(self, threads: int, waiting_max: int = WAITING_MAX) -> None:
        super().__init__(threads, thread_name_prefix="call")
        self._threads_max = threads
        self._waiting_max = waiting_max
        # A deque counts without a lock: its operations are atomic, and this runs twice in every call.
        self._waiting: deque[None] = deque()
        self._recent_ms = 1.0
        self._thread_role = threading.local()
        self._refusals = ThreadPoolExecutor(1, thread_name_prefix="refusal", initializer=self._mark_refusing)

    @property
    def calls_max(self) -> int:
        """Calls under way and in line at most."""
        return self._threads_max + self._waiting_max

    def submit(
        self, call: Callable[Parameters, Result], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Future[Result]:
        """Puts a call in line, or hands it to the thread that refuses."""
        if len(self._waiting) >= self._waiting_max:
            return self._refusals.submit(call, *arguments, **named)
        self._waiting.append(None)
        return super().submit(self._begin, call, *arguments, **named)

    def check_admitted(self) -> None:
        """Asks, from the thread of a call, whether it may be answered.

        Raises:
            OverloadedError: The line was full when the call arrived; says when a place is likely.
        """
        if not getattr(self._thread_role, "refuses", False):
            return
        drained_ms = self._recent_ms * self._waiting_max / self._threads_max
        retry_after_ms = int(min(max(drained_ms, _RETRY_MS_MIN), _RETRY_MS_MAX))
        raise OverloadedError(
            f"{self._waiting_max} requests are waiting already",
            remedy=f"ask again in {retry_after_ms} ms",
            details={"retry_after_ms": str(retry_after_ms)},
        )

    def note_duration(self, duration_ms: float) -> None:
        """Learns how long calls take, for the time to come back."""
        self._recent_ms = _PAST_WEIGHT * self._recent_ms + (1 - _PAST_WEIGHT) * duration_ms

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends both kinds of threads."""
        super().shutdown(wait=wait, cancel_futures=cancel_futures)
        self._refusals.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _begin(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 (whatever gRPC hands over)
        self._waiting.pop()
        return call(*arguments, **named)

    def _mark_refusing(self) -> None:
        self._thread_role.refuses = True
