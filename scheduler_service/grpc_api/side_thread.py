"""One thread for work that would stop the event loop, and a bound on how much of it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from scheduler_service.errors import OverloadedError

Answer = TypeVar("Answer")


class SideThread:
    """Does one thing after the other: more threads would only share the interpreter with the event loop.

    Args:
        name: What it does, e.g. "explain".
        waiting_max: How much may wait; each keeps what it was asked with.
    """

    def __init__(self, name: str, *, waiting_max: int) -> None:
        self._name = name
        self._waiting_max = waiting_max
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def begin(self, call: Callable[[], Answer]) -> asyncio.Future[Answer]:
        """Do something when its turn comes; a caller that leaves before takes it off the line.

        Raises:
            OverloadedError: Too much waits.
        """
        if self._waiting >= self._waiting_max:
            raise OverloadedError(
                f"{self._waiting_max} questions wait for the thread {self._name}; ask again in a moment"
            )
        self._waiting += 1
        answer = asyncio.get_running_loop().run_in_executor(self._thread, call)
        answer.add_done_callback(self._done)
        return answer

    def _done(self, answer: asyncio.Future[Answer]) -> None:
        self._waiting -= 1
        if not answer.cancelled():
            answer.exception()
