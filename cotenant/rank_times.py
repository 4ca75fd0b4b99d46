"""Says how long a rank itself takes for a step, so that one which is slower than the others can be found and replaced.

The ranks of a synchronous training are equally fast, because they wait for each other; what differs is the time in
which they do not wait. Put every exchange with other ranks under `waiting` and call `step_done` after each step:

    loss = compute(batch)
    with rank_times.waiting():
        dist.all_reduce(gradient)
    rank_times.step_done()

One file, standard library only, like `cotenant.job`. Outside a cotenant cluster it does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

WRITE_INTERVAL_NS = 500_000_000


class _OwnTime:
    """Counts from the first step on, which may have loaded and compiled."""

    def __init__(self) -> None:
        self.steps = self.own_ns = self._waited_ns = self._written_at_ns = 0
        self._step_began_ns = 0

    def wait(self, waited_ns: int) -> None:
        """Take in a time that was spent waiting."""
        self._waited_ns += waited_ns

    def step(self, now_ns: int) -> bool:
        """Close a step; whether it is time to tell."""
        if self._step_began_ns:
            self.steps += 1
            self.own_ns += max(now_ns - self._step_began_ns - self._waited_ns, 0)
        self._step_began_ns, self._waited_ns = now_ns, 0
        is_due = now_ns - self._written_at_ns >= WRITE_INTERVAL_NS
        if is_due:
            self._written_at_ns = now_ns
        return is_due


_own = _OwnTime()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """What runs inside waits for other ranks: it is not counted as this rank's own time."""
    began_ns = _now_ns()
    try:
        yield
    finally:
        _own.wait(_now_ns() - began_ns)


def step_done() -> None:
    """Close a step of this rank. Costs microseconds; tells the agent at most twice a second."""
    if _own.step(_now_ns()) and (path := _path()) is not None:
        content = {"steps": _own.steps, "own_ns": _own.own_ns}
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(path)


def _path() -> Path | None:
    socket, rank = os.environ.get("COTENANT_PROGRESS", ""), os.environ.get("RANK") or os.environ.get("COTENANT_RANK")
    return Path(socket).with_name(f"rank_times.{int(rank)}.json") if socket and rank else None


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
