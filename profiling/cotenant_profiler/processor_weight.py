"""Holds the device core for the workers: a control group of their own with the highest CPU weight.

Niceness does not help: the kernel shares CPU time between groups first. Where the machine does not permit a group of
one's own, measurements go on without it and the isolation check decides what is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "cotenant-profiler-"
_MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class WeightedGroup:
    """A control group with a raised CPU weight, or none.

    Attributes:
        folder: The group's folder; None when the machine does not permit one.
        description: What was done or why not, for the log.
    """

    folder: Path | None
    description: str

    def add(self, pid: int) -> None:
        """Move a process into the group."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def raised_weight(
    enabled: bool = True, *, mount: Path = _MOUNT, membership: Path = _MEMBERSHIP
) -> Iterator[WeightedGroup]:
    """Yield a group for the workers; it is removed afterwards, when they are gone.

    Args:
        enabled: False yields a group that does nothing.
        mount: Where control groups are mounted.
        membership: File that names the groups of this process.
    """
    group = _create(mount, membership) if enabled else WeightedGroup(None, "CPU weight unchanged: not asked for")
    try:
        yield group
    finally:
        if group.folder is not None:
            with contextlib.suppress(OSError):
                group.folder.rmdir()


def _create(mount: Path, membership: Path) -> WeightedGroup:
    name = f"{_PREFIX}{os.getpid()}"
    own = _own_groups(membership.read_text())
    # (parent folder, file of the weight, its highest value): version 1 first, as a hybrid machine has both.
    candidates = [
        (mount / "cpu" / own.get("cpu", "").lstrip("/"), "cpu.shares", "262144"),
        (mount / own.get("", "").lstrip("/"), "cpu.weight", "10000"),
    ]
    reasons = []
    for parent, file, weight in candidates:
        folder = parent / name
        _remove_left_behind(parent)
        try:
            folder.mkdir()
            (folder / file).write_text(weight)
        except OSError as error:
            reasons.append(f"{file}: {error.strerror}")
            with contextlib.suppress(OSError):
                folder.rmdir()
        else:
            return WeightedGroup(folder, f"{file} {weight}")
    return WeightedGroup(None, f"CPU weight unchanged ({'; '.join(reasons)})")


def _remove_left_behind(parent: Path) -> None:
    """Remove groups of profilers that were killed; a group with processes in it cannot be removed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _own_groups(text: str) -> dict[str, str]:
    """Return group paths by controller name from the text of /proc/PID/cgroup; version 2 has the empty name."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    return groups
