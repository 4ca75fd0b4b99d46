"""A simulated machine: its clocks, its disk, its boots and its processes."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cotenant_agent.processes import ProcessIdentity, ProcessUsage
from tests.simulation.swarm.virtual_time import (
    PROCESS,
    SIGNAL,
    SLEEP,
    STANDSTILL,
    SimulatedProcess,
    VirtualLoop,
    current,
)

if TYPE_CHECKING:
    from tests.simulation.swarm.world import World

EPOCH_NS = 1_760_000_000_000_000_000
"""Where the wall clocks of all machines begin."""


class Machine:
    """One machine.

    Args:
        rate: How fast its clocks run; 1 = as everybody's.
        machine_id: That of the machine whose image this one runs; empty = its name.
        kernel: The machine whose kernel this one shares, as long as it is not started again; None = its own.

    Attributes:
        asleep_since_s: When it fell asleep; negative = it is awake.
        stops: Why everything on it stands still; empty = it runs.
        is_disk_full: Nothing new can be written.
        wall_jump_ns: How far its wall clock was put forward.
    """

    def __init__(
        self, world: World, name: str, *, rate: float = 1.0, machine_id: str = "", kernel: Machine | None = None
    ) -> None:
        self.world = world
        self.loop: VirtualLoop = world.loop
        self.name = name
        self.root = world.root / name
        self.root.mkdir()
        self.rate: float = rate if kernel is None else kernel.rate
        self.kernel = kernel
        self.asleep_since_s = -1.0
        self._slept_s = 0.0
        self.stops: set[str] = set()
        self.machine_id = machine_id or name
        self.boots = 1
        self.booted_s = -100.0
        self.wall_jump_ns = 0
        self.is_disk_full = False
        self.is_on = True
        self.processes: dict[int, MachineProcess] = {}
        self.volatile: dict[str, None] = {}
        self._last_pid = 1000

    @property
    def boot_id(self) -> str:
        """Another one after every start of the machine."""
        return self.kernel.boot_id if self.kernel is not None else f"boot-{self.name}-{self.boots}"

    def boot_ns(self) -> int:
        """Nanoseconds since the machine started, by its own clock."""
        return int((self.loop.time() - self.booted_s) * self.rate * 1e9)

    def awake_ns(self) -> int:
        """The same without the time that it slept."""
        since_s = self.loop.time() - self.asleep_since_s if self.is_asleep else 0.0
        return self.boot_ns() - int((self._slept_s + since_s) * self.rate * 1e9)

    @property
    def is_asleep(self) -> bool:
        """Whether all of it stands still."""
        return self.asleep_since_s >= 0

    def fall_asleep(self) -> None:
        """Let everything on it stand still, until it is told to go on after `wake_up`."""
        self.asleep_since_s = self.loop.time()
        self._stop(SLEEP)

    def wake_up(self) -> None:
        """Count the time as slept."""
        self.stops.discard(SLEEP)
        if self.is_asleep:
            self._slept_s += self.loop.time() - self.asleep_since_s
            self.asleep_since_s = -1.0

    @property
    def is_held(self) -> bool:
        """Whether all of it stands still while its clocks go on."""
        return STANDSTILL in self.stops

    def stand_still(self) -> None:
        """Let everything on it stand still, until it is told to go on after `go_on`."""
        self._stop(STANDSTILL)

    def go_on(self) -> None:
        """Let nothing that begins on it stand still any more."""
        self.stops.discard(STANDSTILL)

    def _stop(self, why: str) -> None:
        self.stops.add(why)
        for process in self.loop.processes:
            if process.machine is self:
                process.freeze(why)

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, by its own clock."""
        return EPOCH_NS + int(self.loop.time() * self.rate * 1e9) + self.wall_jump_ns

    def next_pid(self) -> int:
        """A number that no process of this machine had."""
        self._last_pid += 1
        return self._last_pid

    def living(self) -> Sequence[MachineProcess]:
        """Every process that has not ended."""
        return tuple(self.processes.values())

    def power_off(self, generator: random.Random) -> None:
        """Everything ends at once, and what was not flushed may be torn."""
        self.is_on, self.asleep_since_s = False, -1.0
        self.stops.clear()
        for process in self.living():
            process.kill()
        for path in map(Path, self.volatile):
            if path.exists() and generator.random() < 0.5:
                content = path.read_bytes()
                path.write_bytes(content[: generator.randrange(len(content) + 1)])
        self.volatile.clear()

    def power_on(self) -> None:
        """A new boot; nothing runs yet."""
        self.is_on = True
        self.boots += 1
        self.kernel = None
        self.booted_s, self._slept_s = self.loop.time(), 0.0


class MachineProcess(SimulatedProcess):
    """A process in the table of its machine."""

    def __init__(self, name: str, machine: Machine) -> None:
        super().__init__(name, machine)
        self.pid = machine.next_pid()
        self.start_ticks = machine.boot_ns() // 10_000_000
        machine.processes[self.pid] = self
        self.at_death.append(lambda: machine.processes.pop(self.pid, None))

    def receive_signal(self, number: int) -> None:
        """What a signal does by default."""
        if number == signal.SIGSTOP:
            self.freeze(SIGNAL)
        elif number == signal.SIGCONT:
            self.thaw(SIGNAL)
        else:
            self.kill()


class SimulatedProcesses:
    """The agent's port to processes; see `cotenant_agent.processes.Processes`."""

    @property
    def _table(self) -> dict[int, MachineProcess]:
        return current().machine.processes

    def identify(self, pid: int) -> ProcessIdentity | None:
        """See the port."""
        process = self._table.get(pid)
        if process is None:
            return None
        return ProcessIdentity(boot_id=process.machine.boot_id, pid=pid, start_ticks=process.start_ticks)

    def is_alive(self, identity: ProcessIdentity) -> bool:
        """See the port."""
        return self.identify(identity.pid) == identity

    def send_signal(self, identity: ProcessIdentity, number: int) -> bool:
        """See the port."""
        if not self.is_alive(identity):
            return False
        self._table[identity.pid].receive_signal(number)
        return True

    def catches(self, pid: int, number: int) -> bool:
        """See the port: no simulated job writes checkpoints by signal alone."""
        return False

    def tree(self, pid: int) -> tuple[int, ...]:
        """See the port: jobs are single processes."""
        return (pid,) if pid in self._table else ()

    def session_members(self, session: int) -> tuple[int, ...]:
        """See the port."""
        return self.tree(session)

    def usage(self, pids: Sequence[int], *, common_bytes: int = 0) -> ProcessUsage:
        """See the port."""
        return ProcessUsage(resident_bytes=0, cpu_s=0.0)

    def local_ranks(self, pids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """See the port: no job has a launcher."""
        return ()

    def spawn(self, argv: Sequence[str], log_path: Path, stdin: bytes = b"") -> ProcessIdentity:
        """See the port: the only program that an agent starts is the shim."""
        machine = current().machine
        machine.world.strike_here("agent_killed_at_spawn")
        # The interpreter, three of its flags, the shim's file, the directory.
        shim = machine.world.start_shim(machine, Path(argv[5]))
        return ProcessIdentity(boot_id=machine.boot_id, pid=shim.pid, start_ticks=shim.start_ticks)

    def reap(self) -> None:
        """See the port: the table holds no zombies."""


class StampedFile:
    """The temporary file of a durable write: where disks are full, processes die and file ages are simulated.

    Args:
        path: What the file is to replace.
    """

    def __init__(self, path: Path) -> None:
        self._target = str(path)
        folder, _, name = self._target.rpartition("/")
        self._path = f"{folder}/.{name}.tmp"

    def open(self, mode: str, **options: Any) -> IO[Any]:
        """Open, where there is room."""
        check_room(self._path)
        return open(self._path, mode, **options)  # noqa: PTH123 - paths as objects cost a twentieth of a run

    def write_bytes(self, data: bytes) -> int:
        """Write without a flush, where there is room."""
        check_room(self._path)
        current().machine.volatile[self._target] = None
        with open(self._path, "wb", buffering=0) as file:  # noqa: PTH123
            return file.write(data)

    def replace(self, target: Path) -> None:
        """Take the place of the target."""
        current().count_write()
        os.replace(self._path, self._target)  # noqa: PTH105
        stamp(target)
        current().machine.world.file_written(target)


class KeptRoom:
    """In the place of `durable_files.room_of`: what takes a file's content when the disk takes no other.

    Args:
        path: What it is kept for.
    """

    def __init__(self, path: Path) -> None:
        self._path = f"{path}.room"

    def exists(self) -> bool:
        """Whether it was kept, and not used yet."""
        return os.path.exists(self._path)  # noqa: PTH110

    def open(self, mode: str, **options: Any) -> IO[Any]:
        """Open what occupies its place already."""
        current().count_write()
        return open(self._path, mode, **options)  # noqa: PTH123

    def write_bytes(self, data: bytes) -> int:
        """Take the place, where there is room."""
        check_room(self._path)
        with open(self._path, "wb", buffering=0) as file:  # noqa: PTH123
            return file.write(data)

    def replace(self, target: Path) -> None:
        """Take the place of the target."""
        current().count_write()
        os.replace(self._path, target)  # noqa: PTH105
        stamp(target)
        current().machine.world.file_written(target)


def left_bytes(_: Path) -> int:
    """In the place of `state_disk.free_bytes`."""
    return 0 if current().machine.is_disk_full else 1 << 40


def check_room(path: str | Path) -> None:
    """Refuse what a full disk refuses."""
    if current().machine.is_disk_full:
        raise OSError(errno.ENOSPC, "no space is left on the simulated disk", str(path))


def stamp(path: Path) -> None:
    """Give a file the age of the simulated instant."""
    wall_ns = current().machine.wall_ns()
    os.utime(path, ns=(wall_ns, wall_ns))


def temporary_file(path: Path) -> StampedFile:
    """In the place of `durable_files._temporary`."""
    current().count_write()
    return StampedFile(path)


def read_record(path: Path) -> dict[str, object]:
    """A JSON object; empty when there is none."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return dict(json.loads(file.read()))
    except (OSError, ValueError):
        return {}


class SimulatedTime:
    """In the place of the module `time` where a program reads clocks."""

    CLOCK_BOOTTIME = "boot"
    CLOCK_MONOTONIC = "monotonic"

    @staticmethod
    def time_ns() -> int:
        """The wall clock of the present machine."""
        process = PROCESS.get()
        return EPOCH_NS if process is None else process.machine.wall_ns()

    @staticmethod
    def clock_gettime_ns(clock: str) -> int:
        """Every other clock of the present machine."""
        machine = current().machine
        return machine.boot_ns() if clock == SimulatedTime.CLOCK_BOOTTIME else machine.awake_ns()

    @staticmethod
    def monotonic_ns() -> int:
        """The clock that stands still while the machine sleeps."""
        return current().machine.awake_ns()

    @staticmethod
    def perf_counter_ns() -> int:
        """Durations of decisions are none."""
        return 0

    @staticmethod
    def sleep(seconds: float) -> None:
        """Nobody can wait in the middle of a step: who would, tries again at its next turn."""
        raise OSError(errno.EAGAIN, f"to be tried again in {seconds} s")
