"""Processes of this machine, seen through /proc and touched through pidfds.

A pid alone identifies no process: it is reused, and a zombie still answers to it. A process is identified by boot, pid
and start time together, and counts as running only while it is no zombie.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LOCAL_RANK = b"LOCAL_RANK="
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process, distinguishable from a later one with the same pid; start time in clock ticks since boot."""

    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """Resources of a set of processes: resident bytes, and CPU time in seconds with that of ended children.

    Pages that a fork shares with its parent count once: of all processes but the largest what is their own.
    """

    resident_bytes: int
    cpu_s: float


class Processes(Protocol):
    """The port: what the agent needs to know of and do to processes."""

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The living process with that pid; None when there is none or only its zombie."""

    def is_alive(self, identity: ProcessIdentity) -> bool:
        """Whether exactly this process still runs."""

    def send_signal(self, identity: ProcessIdentity, number: int) -> bool:
        """Signal exactly this process; False when it is gone."""

    def catches(self, pid: int, number: int) -> bool:
        """Whether the process has a handler of its own for the signal."""

    def tree(self, pid: int) -> tuple[int, ...]:
        """The process and its living descendants, parents first; empty when it is gone."""

    def session_members(self, session: int) -> tuple[int, ...]:
        """All processes of a session, whatever their parents are now."""

    def usage(self, pids: Sequence[int], *, common_bytes: int = 0) -> ProcessUsage:
        """Summed over those of the processes that still live.

        Args:
            pids: The processes.
            common_bytes: What each holds that has imported the same framework; it counts once for all of them.
        """

    def local_ranks(self, pids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Those that a launcher of the job's own has started as its ranks, rank by rank; empty where there are none."""

    def spawn(self, argv: Sequence[str], log_path: Path, stdin: bytes = b"") -> ProcessIdentity:
        """Start a program in a session of its own that outlives the agent; its output goes to the file.

        Args:
            argv: The program, by its path, and its arguments.
            log_path: The file.
            stdin: What it finds there, at most a few hundred bytes; through a pipe, which no other process can read.
        """

    def reap(self) -> None:
        """Collect children of the agent that have ended."""


class LinuxProcesses:
    """The real ones."""

    def __init__(self) -> None:
        self._boot_id = read_boot_id()
        self._children: set[int] = set()

    def identify(self, pid: int) -> ProcessIdentity | None:
        """See `Processes.identify`."""
        fields = _stat_fields(pid)
        if fields is None or fields[0] in "ZXx":
            return None
        return ProcessIdentity(boot_id=self._boot_id, pid=pid, start_ticks=int(fields[19]))

    def is_alive(self, identity: ProcessIdentity) -> bool:
        """See `Processes.is_alive`."""
        return self.identify(identity.pid) == identity

    def send_signal(self, identity: ProcessIdentity, number: int) -> bool:
        """See `Processes.send_signal`."""
        try:
            descriptor = os.pidfd_open(identity.pid)
        except OSError:
            return False
        try:
            # The descriptor holds on to one process; only now is it certain which one.
            if not self.is_alive(identity):
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def catches(self, pid: int, number: int) -> bool:
        """See `Processes.catches`."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
        return False

    def tree(self, pid: int) -> tuple[int, ...]:
        """See `Processes.tree`."""
        if self.identify(pid) is None:
            return ()
        found = [pid]
        for parent in found:
            found.extend(child for child in _children(parent) if child not in found and self.identify(child))
        return tuple(found)

    def session_members(self, session: int) -> tuple[int, ...]:
        """See `Processes.session_members`."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        stats = {pid: _stat_fields(pid) for pid in pids}
        return tuple(pid for pid, fields in stats.items() if fields is not None and int(fields[3]) == session)

    def usage(self, pids: Sequence[int], *, common_bytes: int = 0) -> ProcessUsage:
        """See `Processes.usage`."""
        resident, ticks = {}, 0
        for pid in pids:
            fields = _stat_fields(pid)
            if fields is not None:
                resident[pid] = int(fields[21]) * _PAGE_BYTES
                ticks += sum(int(value) for value in fields[11:15])
        largest = max(resident, key=lambda pid: resident[pid], default=0)
        resident_bytes = resident.pop(largest, 0)
        # What was forked shares with its parent, what was started imports anew: either way it is there already.
        beyond = {pid: size - common_bytes for pid, size in resident.items() if size > common_bytes}
        resident_bytes += sum(min(size, _own_bytes(pid, size)) for pid, size in beyond.items())
        return ProcessUsage(resident_bytes=resident_bytes, cpu_s=ticks / _TICKS_PER_S)

    def local_ranks(self, pids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """See `Processes.local_ranks`."""
        found: dict[int, tuple[int, ...]] = {}
        for pid in pids:
            rank = _local_rank(pid)
            if rank is not None:
                found[rank] = (*found.get(rank, ()), pid)
        return tuple(found[rank] for rank in sorted(found))

    def spawn(self, argv: Sequence[str], log_path: Path, stdin: bytes = b"") -> ProcessIdentity:
        """See `Processes.spawn`."""
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        words, mouth = os.pipe()
        os.write(mouth, stdin)
        os.close(mouth)
        # posix_spawn and not fork: gRPC's threads must not be copied into the child.
        pid = os.posix_spawn(
            argv[0],
            list(argv),
            {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, words, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        os.close(words)
        self._children.add(pid)
        fields = _stat_fields(pid)
        return ProcessIdentity(boot_id=self._boot_id, pid=pid, start_ticks=int(fields[19]) if fields else 0)

    def reap(self) -> None:
        """See `Processes.reap`."""
        for pid in tuple(self._children):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                ended = True
            if ended:
                self._children.discard(pid)


def read_boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat from field 3 (state) on; the command name before may contain anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None


def _own_bytes(pid: int, resident_bytes: int) -> int:
    """What a process has written itself and shares with no other; `resident_bytes` where the kernel does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:"))
    except (OSError, UnicodeDecodeError, ValueError, LookupError, StopIteration):
        return resident_bytes


def _local_rank(pid: int) -> int | None:
    """What launchers of ranks tell those that they start, and these all that they start; None = it was told nothing."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next(int(one[len(_LOCAL_RANK) :]) for one in variables if one.startswith(_LOCAL_RANK))
    except (OSError, ValueError, StopIteration):
        return None


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (a third of the cost of Path.iterdir)
            with contextlib.suppress(OSError):
                children += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return children


def pinned_processes(cores: Mapping[str, int], *, own_pid: int) -> dict[str, frozenset[int]]:
    """Return the processes that may run on the core of a stand-in device and on no other, by GPU id.

    Args:
        cores: Core of each stand-in device.
        own_pid: A process that is left out.
    """
    found: dict[str, set[int]] = {gpu_id: set() for gpu_id in cores}
    gpu_of = {core: gpu_id for gpu_id, core in cores.items()}
    for name in (entry.name for entry in Path("/proc").iterdir()):
        if name.isdigit() and int(name) != own_pid and _has_program(int(name)):
            try:
                allowed = os.sched_getaffinity(int(name))
            except OSError:
                continue
            gpu_ids = [gpu_of[core] for core in allowed if core in gpu_of]
            for gpu_id in gpu_ids if len(allowed) == len(gpu_ids) else ():
                found[gpu_id].add(int(name))
    return {gpu_id: frozenset(pids) for gpu_id, pids in found.items()}


def _has_program(pid: int) -> bool:
    """Say whether a process is no thread of the kernel."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
