"""Control groups where the machine offers them: version 2, version 1, both halves of a hybrid, or none at all.

Every ability is probed by doing it once, and only what worked is announced. Jobs live in
`<the agent's own group>/cotenant-<node>-<state folder>/<job>.<attempt>`: two agents of one node name, of two clusters
on one machine, share nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cotenant_agent.keeper.kernel_files import try_write

_PROBE_NAME = "probe"
_FREEZE = "cgroup.freeze"
_TASKS = "pids.max"
_VERSION_1_FILES = {
    "memory": "memory.limit_in_bytes",
    "cpu": "cpu.cfs_quota_us",
    "freezer": "freezer.state",
    "pids": _TASKS,
}
_CPU_PERIOD_US = 100_000
_SWEEPS_MAX = 50
_SWEEP_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiles:
    """What a shim needs of its group: files to join by, to kill by, to freeze by, to count out-of-memory kills in."""

    procs_files: tuple[str, ...] = ()
    kill_file: str = ""
    freeze_file: str = ""
    oom_files: tuple[str, ...] = ()


@dataclass(slots=True)
class ControlGroups:
    """The groups of one node.

    Attributes:
        unified: parent directory in the version-2 hierarchy; None = not usable.
        memory: parent directory that limits memory (version 1 or 2); None = host memory cannot be limited.
        cpu: parent directory that limits CPU time; None = it cannot be limited.
        freezer: parent directory that lets jobs stand still (version 1 or 2); None = only signals do.
        pids: parent directory that bounds processes and threads (version 1 or 2); None = nothing bounds them.
    """

    unified: Path | None = None
    memory: Path | None = None
    cpu: Path | None = None
    freezer: Path | None = None
    pids: Path | None = None
    _left_over: set[Path] = field(default_factory=set)

    @property
    def enforcements(self) -> tuple[str, ...]:
        """What these groups can enforce, in the words of the Hello."""
        found = []
        if self.unified is not None:
            found.append("cgroup_kill")
        if self.memory is not None:
            found.append("cgroup_memory")
        if self.cpu is not None:
            found.append("cgroup_cpu")
        if self.pids is not None:
            found.append("cgroup_pids")
        return tuple(found)

    def create(self, name: str, *, memory_bytes: int = 0, cpu_cores: float = 0.0, tasks_max: int = 0) -> GroupFiles:
        """Make the group of one attempt with its limits; a limit of 0 is none."""
        directories = [parent / name for parent in self._parents()]
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
        if self.memory is not None and memory_bytes > 0:
            _limit_memory(self.memory / name, memory_bytes)
        if self.cpu is not None and cpu_cores > 0:
            _limit_cpu(self.cpu / name, cpu_cores)
        if self.pids is not None and tasks_max > 0:
            try_write(self.pids / name / _TASKS, str(tasks_max))
        oom_files = [] if self.memory is None else [_oom_file(self.memory / name)]
        return GroupFiles(
            procs_files=tuple(str(directory / "cgroup.procs") for directory in directories),
            kill_file="" if self.unified is None else str(self.unified / name / "cgroup.kill"),
            freeze_file="" if self.freezer is None else str(_freeze_file(self.freezer / name)),
            oom_files=tuple(str(path) for path in oom_files),
        )

    def thaw(self, name: str) -> None:
        """Let whatever is left in the group of an attempt go on: in version 1 nothing frozen can be killed."""
        if self.freezer is not None:
            path = _freeze_file(self.freezer / name)
            try_write(path, "0" if path.name == _FREEZE else "THAWED")

    def kill(self, name: str) -> None:
        """Kill whatever is left in the group of an attempt."""
        if self.unified is not None:
            try_write(self.unified / name / "cgroup.kill", "1")

    def left_over_names(self) -> tuple[str, ...]:
        """Attempts that have a group, whichever agent with this state folder made it."""
        found = {
            path.name for parent in self._parents() if parent.is_dir() for path in parent.iterdir() if path.is_dir()
        }
        return tuple(sorted(found - {_PROBE_NAME}))

    def clear(self, name: str) -> None:
        """Kill whatever is left in the group of an attempt that no shim keeps, and remove the group."""
        lists = [parent / name / "cgroup.procs" for parent in self._parents()]
        # Version 1 ends nothing that is frozen; what was held since its lease is over makes no step when it is let go.
        for procs_file in lists:
            _kill_members(procs_file, sweeps=1)
        self.thaw(name)
        self.kill(name)
        for procs_file in lists:
            _kill_members(procs_file)
        self.remove(name)

    def remove(self, name: str) -> None:
        """Remove the group of an ended attempt; what the kernel still holds busy is removed with the next ones."""
        self._left_over.update(parent / name for parent in self._parents())
        self._sweep()

    def remove_parents(self) -> None:
        """Remove the node's own groups if no job is left in them; waits for the kernel for a second at most."""
        for _ in range(_SWEEPS_MAX):
            if self._sweep():
                break
            time.sleep(_SWEEP_PAUSE_S)
        for parent in self._parents():
            _remove_group(parent)

    def _sweep(self) -> bool:
        """Remove the groups of ended attempts; whether none is left."""
        # An ended process leaves its group a moment after its parent was notified: until then the group is busy.
        self._left_over = {directory for directory in self._left_over if not _remove_group(directory)}
        return not self._left_over

    def _parents(self) -> Iterator[Path]:
        yield from dict.fromkeys(
            path for path in (self.unified, self.memory, self.cpu, self.freezer, self.pids) if path is not None
        )


def name_agent(node_id: str, state_dir: Path) -> str:
    """A name for an agent's groups: the same after a restart, another one for an agent with another state folder."""
    digest = hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()
    return f"{node_id}-{digest[:12]}"


def detect(
    agent_name: str, root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> ControlGroups:
    """Find out by trying what this machine lets the agent do.

    Args:
        agent_name: becomes part of the group's name; see `name_agent`.
        root: where the hierarchies are mounted.
        membership: the agent's own groups.
    """
    groups = ControlGroups()
    own = _own_groups(membership)
    unified_root = root if (root / "cgroup.controllers").exists() else root / "unified"
    if "" in own and (unified_root / "cgroup.procs").exists():
        parent = unified_root / own[""].lstrip("/") / f"cotenant-{agent_name}"
        _enable_controllers(parent)
        groups.unified = parent if _usable(parent, "cgroup.kill") else None
        groups.memory = parent if _usable(parent, "memory.max") else None
        groups.cpu = parent if _usable(parent, "cpu.max") else None
        groups.freezer = parent if _usable(parent, _FREEZE) else None
        groups.pids = parent if _usable(parent, _TASKS) else None
    for controller, name in _VERSION_1_FILES.items():
        if getattr(groups, controller) is None and controller in own:
            parent = root / controller / own[controller].lstrip("/") / f"cotenant-{agent_name}"
            if _usable(parent, name):
                setattr(groups, controller, parent)
    return groups


def _own_groups(membership: Path) -> dict[str, str]:
    """Controller name ('' = version 2) to the path of the group inside its hierarchy."""
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _enable_controllers(parent: Path) -> None:
    """Ask version 2 for limits below; refused where the agent's own group holds processes, and that is fine."""
    with contextlib.suppress(OSError):
        parent.mkdir(exist_ok=True)
    for directory in (parent.parent, parent):
        for controller in ("memory", "cpu", "pids"):
            try_write(directory / "cgroup.subtree_control", f"+{controller}")


def _usable(parent: Path, file_name: str) -> bool:
    probe = parent / _PROBE_NAME
    try:
        probe.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    found = (probe / file_name).exists()
    with contextlib.suppress(OSError):
        probe.rmdir()
    if not found:
        with contextlib.suppress(OSError):
            parent.rmdir()
    return found


def _remove_group(directory: Path) -> bool:
    """Remove an empty group; whether it is gone."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill_members(procs_file: Path, *, sweeps: int = _SWEEPS_MAX) -> None:
    """SIGKILL to the members of a group, and to what they start meanwhile; for a second at most."""
    for _ in range(sweeps):
        members = _read_pids(procs_file)
        for pid in members:
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(pid)
                try:
                    # The descriptor holds on to one process; only now is it certain that it is a member.
                    if pid in _read_pids(procs_file):
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
        if not members:
            return
        time.sleep(_SWEEP_PAUSE_S)


def _read_pids(procs_file: Path) -> set[int]:
    with contextlib.suppress(OSError):
        # A member that this process cannot see is listed as 0.
        return {int(line) for line in procs_file.read_text().splitlines() if line.isdigit()} - {0}
    return set()


def _limit_memory(directory: Path, limit_bytes: int) -> None:
    if (directory / "memory.max").exists():
        try_write(directory / "memory.max", str(limit_bytes))
        try_write(directory / "memory.swap.max", "0")
        try_write(directory / "memory.oom.group", "1")
    else:
        try_write(directory / "memory.limit_in_bytes", str(limit_bytes))


def _limit_cpu(directory: Path, cores: float) -> None:
    quota_us = int(cores * _CPU_PERIOD_US)
    if (directory / "cpu.max").exists():
        try_write(directory / "cpu.max", f"{quota_us} {_CPU_PERIOD_US}")
    else:
        try_write(directory / "cpu.cfs_quota_us", str(quota_us))


def _oom_file(directory: Path) -> Path:
    modern = directory / "memory.events"
    return modern if modern.exists() else directory / "memory.oom_control"


def _freeze_file(directory: Path) -> Path:
    modern = directory / _FREEZE
    return modern if modern.exists() else directory / "freezer.state"
