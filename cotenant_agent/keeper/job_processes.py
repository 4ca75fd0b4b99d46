"""The processes of one attempt as its keeper finds and ends them; like the shim it needs the standard library only.

Three things name a process: it descends from the keeper (which adopts every orphan), it stands in the attempt's control
group, or its environment carries the attempt's marker. The last reaches what others started on the job's behalf, such
as a launcher that goes through ssh to its own machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

_MARKER_VARIABLE = "COTENANT_PROGRESS"
_ENVIRONMENT_LIMIT_BYTES = 1 << 20
_COMMAND_LIMIT_BYTES = 1 << 17
_SWEEPS_MAX = 5


class SeenProcess(NamedTuple):
    """A process at the instant of a look; identified by pid and start time (clock ticks since boot)."""

    pid: int
    start_ticks: int
    parent_pid: int
    group: int
    session: int
    catches_stop: bool
    is_still: bool
    """It was stopped by a signal."""
    image: str
    """Equal in a process and its fork, and another one in whatever has executed a program since."""


class JobProcesses:
    """Finds and signals the processes of an attempt; the keeper itself is none of them.

    Args:
        supervisor_pid: The shim.
        group_files: Lists of members (`cgroup.procs`) of the attempt's control groups.
        environment: What the job was started with; the path of its progress socket is the marker, as no other attempt
            of this machine has it.
        uid: User that the job runs as; processes of others carry no marker.
    """

    def __init__(self, supervisor_pid: int, group_files: Iterable[str], environment: dict[str, str], uid: int) -> None:
        self._supervisor_pid = supervisor_pid
        self._keepers = {supervisor_pid}
        self._group_files = tuple(group_files)
        path = environment.get(_MARKER_VARIABLE, "")
        self._marker = f"{_MARKER_VARIABLE}={path}".encode() if path else b""
        self._uid = uid
        self._files = _mounted_files("self")
        self._told: dict[tuple[int, int], SeenProcess] = {}
        self._held: dict[tuple[int, int], SeenProcess] = {}

    def leave_out(self, pid: int) -> None:
        """Name another keeper: a namespace's first process descends from the shim and is no part of the job."""
        self._keepers.add(pid)

    def ask_to_stop(self) -> bool:
        """SIGTERM to every process, once, except to helpers of one that handles it; whether any was signalled."""
        # Again, because processes start others meanwhile.
        sweeps = 0
        while sweeps < _SWEEPS_MAX and self._tell(self._find(), with_deaf=True):
            sweeps += 1
        return sweeps > 0

    def ask_newcomers_to_stop(self) -> None:
        """SIGTERM to processes that handle it since the last look: one that was just starting can checkpoint too."""
        self._tell(self._find(), with_deaf=False)

    def has_told_alive(self) -> bool:
        """Whether a process that was asked to stop still runs."""
        return any(_look(process.pid, process.start_ticks) is not None for process in self._told.values())

    def kill_outsiders(self) -> None:
        """SIGKILL to all that do not descend from the keeper, which learns of the end of those that do."""
        parents = _parents()
        named = self._named(parents)
        outsiders = (named | _descendants(named, parents)) - _descendants({self._supervisor_pid}, parents)
        for process in _look_at(outsiders - {self._supervisor_pid}):
            _signal(process, signal.SIGKILL)

    def kill_remains(self) -> None:
        """SIGKILL to all that a keeper which is gone has left behind, and to what they start meanwhile."""
        for _ in range(_SWEEPS_MAX):
            self.kill_outsiders()

    def kill_children(self) -> None:
        """SIGKILL to all children of this thread: what left its group is one once its parent has ended (subreaper)."""
        for pid in _read_numbers("/proc/thread-self/children"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_members(self, members_file: str) -> None:
        """SIGKILL to every member of a control group, from its list, but for keepers."""
        for process in _look_at(set(_read_numbers(members_file)) - self._keepers):
            _signal(process, signal.SIGKILL)

    def hold(self, frozen_files: Iterable[str] = ()) -> bool:
        """SIGSTOP to every process that runs, parents first; whether all of them stand still.

        Args:
            frozen_files: Lists of members of groups that the kernel freezes; these get no signal.
        """
        frozen = {pid for path in frozen_files for pid in _read_numbers(path)}
        for _ in range(_SWEEPS_MAX):
            running = [one for pid, one in self._find().items() if pid not in frozen and not one.is_still]
            # Again, because a process may have started another one until it stood still.
            for process in sorted(running, key=lambda one: (one.start_ticks, one.pid)):
                if _signal(process, signal.SIGSTOP):
                    self._held[process.pid, process.start_ticks] = process
            if not running:
                return True
        return False

    def let_go(self) -> None:
        """SIGCONT to every process that was held here, the youngest first; others that were stopped stay so."""
        for process in sorted(self._held.values(), key=lambda one: (one.start_ticks, one.pid), reverse=True):
            _signal(process, signal.SIGCONT)
        self._held.clear()

    def are_within(self, members_file: str, groups: Collection[int]) -> bool:
        """Whether every process is a member of a control group, or of one of these process groups.

        Args:
            members_file: List of members of the control group; empty = there is none.
            groups: Numbers of process groups.
        """
        members = set(_read_numbers(members_file))
        return all(pid in members or process.group in groups for pid, process in self._find().items())

    def _find(self) -> dict[int, SeenProcess]:
        parents = _parents()
        named = self._named(parents)
        pids = named | _descendants(named | {self._supervisor_pid}, parents)
        return {process.pid: process for process in _look_at(pids - self._keepers)}

    def _named(self, parents: dict[int, int]) -> set[int]:
        """Members of the control group, and bearers of the marker."""
        found = {pid for path in self._group_files for pid in _read_numbers(path)}
        if self._marker:
            found.update(pid for pid in parents if self._bears_marker(pid))
        # A number that names no process here stands for members in another namespace.
        return (found & set(parents)) - self._keepers - {os.getpid()}

    def _bears_marker(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != self._uid:  # noqa: PTH116
                return False
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                content = file.read(_ENVIRONMENT_LIMIT_BYTES)
            # In another container the same path is another attempt's.
            return self._marker in content.split(b"\0") and self._files == _mounted_files(str(pid)) != (0, 0)
        return False

    def _tell(self, found: dict[int, SeenProcess], *, with_deaf: bool) -> bool:
        """Send SIGTERM to the processes that are due; whether there were any."""
        is_told = False
        for process in found.values():
            identity = (process.pid, process.start_ticks)
            if identity in self._told or not (with_deaf or process.catches_stop) or self._is_helper(process, found):
                continue
            self._told[identity] = process
            is_told = _signal(process, signal.SIGTERM) or is_told
        return is_told

    def _is_helper(self, process: SeenProcess, found: dict[int, SeenProcess]) -> bool:
        """Whether a process works for one that handles SIGTERM, and must live until that has written its checkpoint.

        Data loaders are such: forks of the training process, with its arguments, its session and its handler, or
        programs below it that handle nothing. A program of its own that handles SIGTERM is signalled itself.
        """
        parent = found.get(process.parent_pid)
        if process.catches_stop:
            return parent is not None and self._handles(parent) and _is_copy(process, parent)
        return any(self._handles(ancestor) for ancestor in _ancestors(process, found))

    def _handles(self, process: SeenProcess) -> bool:
        known = self._told.get((process.pid, process.start_ticks))
        return process.catches_stop or (known is not None and known.catches_stop)


def catches(pid: int, number: int) -> bool:
    """Whether the process handles the signal itself."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is, oldest first."""
    found = [child for child, parent in _parents().items() if parent == pid]
    return sorted(found, key=lambda child: (start_ticks(child), child))


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; raises OSError when there is none."""
    return int(_read_stat(pid)[19])


def _is_copy(process: SeenProcess, parent: SeenProcess) -> bool:
    return (process.session, process.image) == (parent.session, parent.image)


def _ancestors(process: SeenProcess, found: dict[int, SeenProcess]) -> Iterator[SeenProcess]:
    seen = {process.pid}
    while (parent := found.get(process.parent_pid)) is not None and parent.pid not in seen:
        seen.add(parent.pid)
        yield parent
        process = parent


def _signal(process: SeenProcess, number: int) -> bool:
    """Signal exactly this process; False when it is gone or another user's."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The descriptor holds on to one process; only now is it certain which one.
        if _look(process.pid, process.start_ticks) is None:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _look_at(pids: Iterable[int]) -> Iterator[SeenProcess]:
    for pid in sorted(pids):
        process = _look(pid)
        if process is not None:
            yield process


def _look(pid: int, expected_ticks: int | None = None) -> SeenProcess | None:
    """The living process with that pid; None when there is none, only its zombie, or a later one than expected."""
    try:
        fields = _read_stat(pid)
        if fields[0] in "ZXx" or expected_ticks not in (None, int(fields[19])):
            return None
    except (OSError, IndexError):
        return None
    return SeenProcess(
        pid=pid,
        start_ticks=int(fields[19]),
        parent_pid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        catches_stop=catches(pid, signal.SIGTERM),
        is_still=fields[0] in "Tt",
        # Where its stack began: execve draws that anew, a fork keeps it; 0 without the permission to read it.
        image=fields[25] if fields[25] != "0" else _command_line(pid),
    )


def _parents() -> dict[int, int]:
    """The parent of every process of this machine."""
    found = {}
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir("/proc")  # noqa: PTH208
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                found[int(name)] = int(_read_stat(int(name))[1])
    return found


def _descendants(roots: set[int], parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        below = children.pop(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def _read_stat(pid: int) -> list[str]:
    """/proc/PID/stat from field 3 (state) on; the command name before may contain anything."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        return file.read(_COMMAND_LIMIT_BYTES).decode("utf-8", "replace")
    return ""


def _read_numbers(path: str) -> list[int]:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return [int(word) for word in file.read().split() if word.isdigit()]
    except OSError:
        return []


def _mounted_files(pid: str) -> tuple[int, int]:
    """The mount namespace of a process; zeros without the permission to read it."""
    try:
        found = os.stat(f"/proc/{pid}/ns/mnt")  # noqa: PTH116
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
