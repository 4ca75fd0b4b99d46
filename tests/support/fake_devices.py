"""Small in-memory fakes of the agent's two ports; they pass the same contract suites as the real ones."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cotenant_agent.errors import DeviceError
from cotenant_agent.processes import ProcessIdentity, ProcessUsage
from cotenant_agent.records import (
    AttemptKey,
    DeviceBinding,
    GpuDescription,
    GpuReading,
    InventoryReading,
    JobProcesses,
    JobUsage,
)


class FakeInventory:
    """Devices that show what a test wrote into them."""

    def __init__(self, gpu_ids: Sequence[str], memory_bytes: int = 1 << 30) -> None:
        self._gpu_ids = tuple(gpu_ids)
        self._memory_bytes = memory_bytes
        self.faults: dict[str, str] = {}
        self.memory_of_pid: dict[int, int] = {}

    @property
    def enforcements(self) -> tuple[str, ...]:
        return ("watchdog",)

    def describe(self) -> tuple[GpuDescription, ...]:
        return tuple(
            GpuDescription(
                gpu_id=gpu_id,
                device="fake",
                memory_bytes=self._memory_bytes,
                index=index,
                healthy=gpu_id not in self.faults,
                fault=self.faults.get(gpu_id, ""),
            )
            for index, gpu_id in enumerate(self._gpu_ids)
        )

    def bind(self, gpu_ids: Sequence[str]) -> DeviceBinding:
        unknown = set(gpu_ids) - set(self._gpu_ids)
        if unknown:
            raise DeviceError(f"no such device: {unknown}")
        return DeviceBinding(environment={"FAKE_DEVICES": ",".join(gpu_ids)})

    def observe(self, jobs: Mapping[AttemptKey, JobProcesses]) -> InventoryReading:
        gpus = [
            GpuReading(
                gpu_id=gpu.gpu_id, healthy=gpu.healthy, fault=gpu.fault, memory_used_bytes=0 if gpu.healthy else None
            )
            for gpu in self.describe()
        ]
        usages = {key: self._usage(job) for key, job in jobs.items()}
        return InventoryReading(gpus=tuple(gpus), jobs=usages)

    def peak_bytes(self, max_resident_bytes: int, interpreter: str = "") -> int:
        return max(0, max_resident_bytes)

    def close(self) -> None:
        pass

    def _usage(self, job: JobProcesses) -> JobUsage:
        memory_bytes = sum(self.memory_of_pid.get(pid, 0) for pid in job.pids)
        return JobUsage(memory_bytes=memory_bytes, utilization_ratio=0.5 if memory_bytes else 0.0)


@dataclass
class FakeProcess:
    """One process of the fake table."""

    start_ticks: int
    parent: int = 0
    catches: set[int] = field(default_factory=set)
    resident_bytes: int = 1 << 20
    cpu_s: float = 0.0
    alive: bool = True
    local_rank: int | None = None


class FakeProcesses:
    """A process table in memory; SIGKILL and uncaught SIGTERM end a process, other signals are only kept."""

    def __init__(self) -> None:
        self.table: dict[int, FakeProcess] = {}
        self.signals: list[tuple[int, int]] = []

    def identify(self, pid: int) -> ProcessIdentity | None:
        process = self.table.get(pid)
        if process is None or not process.alive:
            return None
        return ProcessIdentity(boot_id="boot", pid=pid, start_ticks=process.start_ticks)

    def is_alive(self, identity: ProcessIdentity) -> bool:
        return self.identify(identity.pid) == identity

    def send_signal(self, identity: ProcessIdentity, number: int) -> bool:
        if not self.is_alive(identity):
            return False
        self.signals.append((identity.pid, number))
        process = self.table[identity.pid]
        if number == signal.SIGKILL or (number == signal.SIGTERM and number not in process.catches):
            process.alive = False
        return True

    def catches(self, pid: int, number: int) -> bool:
        return self.identify(pid) is not None and number in self.table[pid].catches

    def tree(self, pid: int) -> tuple[int, ...]:
        if self.identify(pid) is None:
            return ()
        children = [other for other, process in self.table.items() if process.parent == pid]
        return (pid, *(member for child in children for member in self.tree(child)))

    def session_members(self, session: int) -> tuple[int, ...]:
        return self.tree(session)

    def usage(self, pids: Sequence[int], *, common_bytes: int = 0) -> ProcessUsage:
        living = [self.table[pid] for pid in pids if self.identify(pid) is not None]
        sizes = sorted((process.resident_bytes for process in living), reverse=True)
        return ProcessUsage(
            resident_bytes=sum(sizes[:1]) + sum(max(0, size - common_bytes) for size in sizes[1:]),
            cpu_s=sum(process.cpu_s for process in living),
        )

    def local_ranks(self, pids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        ranks = sorted({rank for pid in pids if (rank := self.table[pid].local_rank) is not None})
        return tuple(tuple(pid for pid in pids if self.table[pid].local_rank == rank) for rank in ranks)

    def spawn(self, argv: Sequence[str], log_path: Path, stdin: bytes = b"") -> ProcessIdentity:
        log_path.write_text("")
        pid = 1000 + len(self.table)
        self.table[pid] = FakeProcess(
            start_ticks=pid, catches={signal.SIGTERM} if "catch" in Path(argv[-1]).name else set()
        )
        return ProcessIdentity(boot_id="boot", pid=pid, start_ticks=pid)

    def reap(self) -> None:
        pass
