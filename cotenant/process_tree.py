"""Which processes descend from this one: for leaving none behind.

A process whose parent ends is given to init, unless an ancestor has declared itself a subreaper. `adopt_orphans`
declares it, so that even shims and jobs in sessions of their own stay findable below us.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant import system_clock

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProcess:
    """One descendant."""

    pid: int
    parent_pid: int
    state: str
    command: str


def adopt_orphans(*, wanted: bool = True) -> bool:
    """Makes this process the parent of orphaned descendants, or no longer; False where the system cannot."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def processes() -> list[FoundProcess]:
    """Returns all processes of this machine that we may look at."""
    found = (_read_process(entry) for entry in Path("/proc").glob("[0-9]*"))
    return [process for process in found if process is not None]


def descendants(root_pid: int) -> list[FoundProcess]:
    """Returns the living descendants of a process, zombies left out."""
    by_parent: dict[int, list[FoundProcess]] = {}
    for process in processes():
        by_parent.setdefault(process.parent_pid, []).append(process)
    found: list[FoundProcess] = []
    queue = [root_pid]
    while queue:
        children = by_parent.get(queue.pop(), [])
        found += [child for child in children if child.state != "Z"]
        queue += [child.pid for child in children]
    return found


def wait_until_alone(timeout_ms: int, *, staying: Collection[int] = ()) -> Sequence[FoundProcess]:
    """Waits for all descendants to end, but for those with the process ids given, and returns those that did not."""
    deadline_ms = system_clock.steady_ms() + timeout_ms
    while True:
        left = [process for process in descendants(os.getpid()) if process.pid not in staying]
        if not left or system_clock.steady_ms() > deadline_ms:
            return left
        system_clock.wait_ms(100)


def kill_all(processes: Sequence[FoundProcess]) -> None:
    """Kills processes that were found; gone ones do not matter."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _read_process(entry: Path) -> FoundProcess | None:
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # it ended while we looked
        return None
    # The name in parentheses may hold spaces and parentheses itself; the fields go on behind the last one.
    state, parent = stat.rpartition(")")[2].split()[:2]
    return FoundProcess(pid=int(entry.name), parent_pid=int(parent), state=state, command=command)
