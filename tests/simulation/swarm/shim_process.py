"""Shims and jobs: the shim's own decisions run for real, and only the kernel below them is simulated."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from cotenant_agent import system_clock
from cotenant_agent.keeper import shim as shim_module
from tests.simulation.swarm.job_process import JobProcess
from tests.simulation.swarm.machine import Machine, MachineProcess, read_record, stamp
from tests.simulation.swarm.virtual_time import current

_LOOK_S = 5.0
"""A shim looks ten times a second; here it looks when a file has changed, at every deadline, and this often."""
STANDSTILL_MS = 6_000
"""More than lies between two of these looks."""
_REACTION_S = 0.1


class ShimProcess(MachineProcess):
    """A process of the shim: `main` of the product in an attempt's directory."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        super().__init__(f"shim {directory.name}", machine)
        self.directory = directory
        self.folder = str(directory)
        self.supervisor: SimulatedSupervisor | None = None
        self.jobs: list[JobProcess] = []
        self.ended: list[tuple[int, int]] = []
        self.descriptors: list[int] = []
        self.stood_since_ms = 0
        """When it began to stand still within a look that goes on now; 0 = it did not."""
        self._due_s = -1.0
        self.at_death.append(self._end)

    def begin(self) -> None:
        """Run the program."""
        try:
            code = shim_module.main()
        except OSError:
            # E.g. a full disk: the program ends with a traceback.
            code = 1
        if code != 0 or self.supervisor is None:
            self.kill()
            return
        self.look()

    def living_jobs(self) -> list[JobProcess]:
        """The processes of its job that have not ended."""
        return [job for job in self.jobs if not job.is_dead]

    @property
    def is_holdable(self) -> bool:
        """Whether a hold reaches all of its job: of some a process has left its group, and nothing more comes of it."""
        return self.pid % 8 != 0

    def lease_left_ms(self, *, with_grace: bool = False) -> int | None:
        """How long the newest lease of an attempt lasts by the clock that counts; None = there is none."""
        lease: dict[str, Any] = read_record(self.directory / "lease.json")
        if "deadline_boot_ms" not in lease:
            return None
        is_shared = "deadline_awake_ms" in lease
        now_ms = (self.machine.awake_ns() if is_shared else self.machine.boot_ns()) // 1_000_000
        deadline_ms = int(lease["deadline_awake_ms" if is_shared else "deadline_boot_ms"])
        return deadline_ms - now_ms + (int(lease["grace_ms"]) if with_grace else 0)

    def file_changed(self) -> None:
        """Something was written into the attempt's directory."""
        if self.supervisor is not None:
            self._look_in(_REACTION_S)

    def look(self) -> None:
        """One turn of the shim's loop, and when the next one is due."""
        self._due_s = -1.0
        supervisor = self.supervisor
        assert supervisor is not None
        if not supervisor.take_turn():
            self._look_in(self._next_look_s(supervisor))

    def note_standstill(self) -> None:
        """It will stand still now; one of three that run is looking just then, and goes on with that look."""
        if self.supervisor is not None and not self.is_frozen and self.pid % 3 == 0:
            self.stood_since_ms = self.machine.boot_ns() // 1_000_000
            self.later(0.0, self.look)

    def child_ended(self, pid: int, status: int) -> None:
        """The kernel's word to the parent."""
        self.ended.append((pid, status))
        if self.supervisor is not None:
            self._look_in(0.01)

    def _look_in(self, delay_s: float) -> None:
        at_s = self.loop.time() + delay_s
        if self._due_s < 0 or at_s < self._due_s - 1e-9:
            self._due_s = at_s
            self.later(delay_s, lambda: self.look() if self._due_s == at_s else None)

    def _next_look_s(self, supervisor: SimulatedSupervisor) -> float:
        now_ms = self.machine.boot_ns() // 1_000_000
        lease = now_ms + left_ms if (left_ms := self.lease_left_ms()) is not None else None
        pause = read_record(self.directory / "pause.json").get("until_boot_ms")
        orders = (lease, pause, supervisor.kill_at_ms, supervisor.held_until_ms)
        instants = [at for at in orders if isinstance(at, int) and at > now_ms]
        return min([_LOOK_S, *((at - now_ms + 1) / 1000 / self.machine.rate for at in instants)])

    def _end(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        for job in self.jobs:
            # The parent-death signal.
            job.kill()


class SimulatedSupervisor(shim_module.AttemptSupervisor):
    """The shim's supervisor, turn by turn."""

    @property
    def kill_at_ms(self) -> int | None:
        """When the grace of a stop is over."""
        return self._kill_at_ms

    @property
    def held_until_ms(self) -> int:
        """When the wait for a newer lease is over; 0 = there is none."""
        return self._standstill.until_ms

    def run(self) -> None:
        """Start the job; turns follow one by one."""
        process = current()
        assert isinstance(process, ShimProcess)
        process.supervisor = self
        self._let_begin(self._start()[-1])

    def take_turn(self) -> bool:
        """What the shim does between two waits; whether it has ended."""
        process = current()
        assert isinstance(process, ShimProcess)
        if not self._finished():
            self._supervise()
            return False
        self._processes.kill_outsiders()
        try:
            self._record_exit()
        except OSError:
            return False
        process.machine.world.file_written(process.directory / "exit.json")
        process.kill()
        return True


class SimulatedJobProcesses:
    """In the place of `JobProcesses`: one process per job, or per rank."""

    def __init__(self, supervisor_pid: int, group_files: Iterable[str], environment: dict[str, str], uid: int) -> None:
        self._is_told = False

    @staticmethod
    def _signal(number: int) -> bool:
        """Send a signal to all; whether there is anybody."""
        living = _shim().living_jobs()
        for job in living:
            job.receive_signal(number)
        return bool(living)

    def ask_to_stop(self) -> bool:
        """SIGTERM, once."""
        if self._is_told:
            return bool(_shim().living_jobs())
        self._is_told = self._signal(signal.SIGTERM)
        return self._is_told

    def ask_newcomers_to_stop(self) -> None:
        """There are none."""

    def has_told_alive(self) -> bool:
        """Whether the job still runs."""
        return bool(_shim().living_jobs())

    def kill_outsiders(self) -> None:
        """There are none."""

    kill_children = kill_outsiders
    """Those of the shim lead groups, which are killed as such."""

    def kill_remains(self) -> None:
        """A job ends with its shim."""

    def hold(self, frozen_files: Iterable[str] = ()) -> bool:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)
        return True

    def let_go(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def are_within(self, members_file: str, groups: Collection[int]) -> bool:
        """Whether a hold reaches all of it."""
        return _shim().is_holdable


class SimulatedBarriers:
    """In the place of the sockets between a shim and what was started early: the processes are asked."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._shim = _shim()
        self._is_told = self._is_open = False

    def of(self, rank: int) -> None:
        """Nothing is inherited."""

    def close_jobs_ends(self) -> None:
        """Nothing was."""

    @property
    def are_closed(self) -> bool:
        """Whether the word to begin was not given yet."""
        return self._ranks > 0 and not self._is_open

    @property
    def are_awaited(self) -> bool:
        """Whether all ranks wait for it and nothing else."""
        return self.are_closed and all(job.is_prepared for job in self._shim.jobs)

    def look_for_prepared(self) -> bool:
        """Whether all ranks are, and nobody was told of it yet."""
        return not self._is_told and self.are_awaited

    def note_told(self) -> None:
        """The agent can know it."""
        self._is_told = True

    def open(self, words: dict[str, Any]) -> None:
        """Let all begin."""
        self._is_open = True
        for job in self._shim.living_jobs():
            job.let_train(words)


class SilentLog:
    """In the place of the rotating log: jobs print nothing."""

    def __init__(self, limit_bytes: int, name: str = "") -> None:
        self.dropped_bytes = 0
        self.tail = b""


def _shim() -> ShimProcess:
    process = current()
    assert isinstance(process, ShimProcess)
    return process


class ShimKernel:
    """In the place of `os` in the shim: paths below its directory, and processes of the simulated machine."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def chdir(self, path: str) -> None:
        """The directory is the process's anyway."""

    def umask(self, mask: int) -> int:
        """The whole test has one."""
        return 0

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A file of the attempt."""
        descriptor = os.open(_shim().directory / name, flags, mode)
        if name == "lock":
            _shim().descriptors.append(descriptor)
        return descriptor

    def stat(self, name: str) -> os.stat_result:
        """Of a file of the attempt."""
        return os.stat(f"{_shim().folder}/{name}")  # noqa: PTH116

    def replace(self, source: str, target: str) -> None:
        """The moment of a durable write."""
        shim = _shim()
        shim.count_write()
        (shim.directory / source).replace(shim.directory / target)
        stamp(shim.directory / target)

    def getpid(self) -> int:
        """The shim's."""
        return _shim().pid

    def pipe(self) -> tuple[int, int]:
        """Nobody reads or writes."""
        return -1, -1

    def close(self, descriptor: int) -> None:
        """Close what is real."""
        if descriptor >= 0:
            os.close(descriptor)

    def pidfd_open(self, pid: int) -> int:
        """Nobody waits for it."""
        return -1

    def write(self, descriptor: int, content: bytes) -> int:
        """The word for which the job waits: each process takes a byte of it."""
        for job in _shim().jobs[: len(content)]:
            if not job.is_dead:
                job.begin()
        return len(content)

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        """Nobody reads."""

    def fork(self) -> int:
        """The job, or its next rank, which waits for the shim's word."""
        shim = _shim()
        shim.jobs.append(JobProcess(shim.machine, shim, lambda pid, status: shim.child_ended(pid, status)))
        return shim.jobs[-1].pid

    def wait4(self, pid: int, options: int) -> tuple[int, int, Any]:
        """The next child that has ended."""
        shim = _shim()
        if shim.ended:
            ended, status = shim.ended.pop(0)
            return ended, status, SimpleNamespace(ru_maxrss=0)
        if not shim.living_jobs():
            raise ChildProcessError
        return 0, 0, None

    def getpgrp(self) -> int:
        """The shim's group."""
        return _shim().pid

    def getpgid(self, pid: int) -> int:
        """Every process of a job leads a group."""
        if all(job.pid != pid for job in _shim().living_jobs()):
            raise ProcessLookupError
        return pid

    def killpg(self, pid: int, number: int) -> None:
        """A signal to one process of the job."""
        job = next((job for job in _shim().living_jobs() if job.pid == pid), None)
        if job is None:
            raise ProcessLookupError
        job.receive_signal(number)

    def kill(self, pid: int, number: int) -> None:
        """A signal to one process of the job."""
        self.killpg(pid, number)


def open_in_directory(name: str, mode: str = "r", **options: Any) -> IO[Any]:
    """In the place of `open` in the shim."""
    shim = _shim()
    if "w" in mode:
        shim.count_write()
        if shim.machine.is_disk_full:
            raise OSError(28, "no space is left on the simulated disk", name)
    # An absolute path, e.g. of the kernel's files, leads outside: there is nothing.
    return open(f"{shim.folder}/{name.lstrip('/')}", mode, **options)  # noqa: PTH123


class ShimArguments:
    """In the place of `sys` in the shim."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    @property
    def argv(self) -> list[str]:
        """The attempt's directory."""
        return ["shim", str(_shim().directory)]


class ShimSignals:
    """In the place of `signal` in the shim."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, action: Any) -> None:
        """The test keeps its handlers."""


def boot_ms() -> int:
    """In the place of the shim's clock: a look that stood still has read it before."""
    shim = _shim()
    read_ms, shim.stood_since_ms = shim.stood_since_ms, 0
    return read_ms or system_clock.boot_ms()


def start_ticks(pid: int) -> int:
    """In the place of `job_processes.start_ticks`."""
    return current().machine.processes[pid].start_ticks
