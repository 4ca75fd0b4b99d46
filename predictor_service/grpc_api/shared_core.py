"""One processor core for all threads that answer brief calls.

Python runs one thread at a time. Where threads lie on several cores, a thread that releases the interpreter's lock
wakes another one elsewhere, which mostly finds it taken again and goes back to sleep: an idle machine spends more on
that than on the answers. On one core the next thread goes on where the last one waits. What computes for long leaves
it, because it calls libraries that release the lock, or starts processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress


class SharedCore:
    """One of the cores that the process may use, for threads that enter it; safe for many threads."""

    def __init__(self) -> None:
        # Empty where the system cannot place threads: then they run anywhere.
        self._all: Set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        # By process id, so that several services of a machine rarely share one.
        self._one: Set[int] = set(sorted(self._all)[os.getpid() % len(self._all) :][:1]) if self._all else set()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Keeps the calling thread on the core, and threads that it starts."""
        _run_on(self._one)
        try:
            yield
        finally:
            _run_on(self._all)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Lets a thread that entered run anywhere for a while, and processes that it starts."""
        _run_on(self._all)
        try:
            yield
        finally:
            _run_on(self._one)


def _run_on(cores: Set[int]) -> None:
    """Places the calling thread; it stays where it is if these cores were taken from the process since."""
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
