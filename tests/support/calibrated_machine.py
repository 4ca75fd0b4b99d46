"""A machine of fakes under calibration: its clock, its device and its measuring processes, each answer in its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from cotenant_profiler.errors import ForkRefusedError, WorkerError
from cotenant_profiler.measured_device import DeviceWindow, EndOfWatch, WorkerPlace

NOW_MS = 1_760_000_000_000
WORKER_PEAK_BYTES, SCRIPT_PEAK_BYTES = 100_000_000, 107_000_000
RATES = {
    "rates": {"fp32": {"matmul_flops_per_s": 1e10, "convolution_flops_per_s": 1e10}},
    "copy_bytes_per_s": 1e10,
    "launch_ms": 0.01,
    "host_steps_per_s": 5e3,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "context": {"context_bytes": 90_000_000, "workspace_bytes": 1_000_000, "reserved_bytes": 0},
    "rates": RATES,
    "memory": {"peak_bytes": WORKER_PEAK_BYTES},
    "script": {"peak_bytes": SCRIPT_PEAK_BYTES},
    "ready": {},
    "prepare": {"steady": True},
    "measure": {"step_ms_mean": 10.0, "utilization_ratio": 0.9, "rate_check_ratio": 1.0},
}
QUICK = {"ready": 0.1, "context": 0.1, "rates": 1.0, "prepare": 0.3, "measure": 0.2, "script": 3.0, "memory": 1.0}


class Machine:
    """Stands in for the clock, the measuring processes and the device; every answer takes its time on that clock."""

    def __init__(
        self,
        *,
        seconds_of: dict[str, float],
        driver_bytes: int | None = None,
        lost: float = 1.1,
        foreign_ratios: Sequence[float] = (0.0,),
    ) -> None:
        self.now_ns = 0
        self.seconds_of = seconds_of
        self.driver_bytes = driver_bytes
        self.lost = lost
        self.foreign_ratios = list(foreign_ratios)
        """Of one window after the other; the last one of all that follow."""
        self.workers: list[Worker] = []
        self.frameworks: list[Framework] = []
        self.running: set[Worker] = set()
        self.together = 0
        self.parts: list[str] = []
        self.driver = "none"
        self.place = WorkerPlace(arguments=("--core", "1"))

    @property
    def is_left(self) -> bool:
        """Whether no process of ours is on it any more."""
        return all(worker.is_closed for worker in self.workers) and all(each.is_closed for each in self.frameworks)

    def spend(self, what: str, timeout_ms: float) -> None:
        taken_ms = 1e3 * self.seconds_of.get(what, 1.0)
        self.now_ns += round(1e6 * min(taken_ms, timeout_ms))
        if taken_ms > timeout_ms:
            raise TimeoutError

    def watch(self, pids: Sequence[int]) -> EndOfWatch:
        ratio = self.foreign_ratios.pop(0) if len(self.foreign_ratios) > 1 else self.foreign_ratios[0]
        return lambda: DeviceWindow(foreign_ratio=ratio)

    def sleep_until(self, at_ns: int) -> None:
        self.now_ns = max(self.now_ns, at_ns)

    def memory_bytes(self, pid: int) -> int | None:
        return self.driver_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Framework:
    """The process of a machine that imports the framework once; `refuses` = nothing can be forked there."""

    refuses = False

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_imported = False
        self.is_closed = False
        machine.frameworks.append(self)

    def start(self, timeout_ms: float, *, keeps_freed_memory: bool | None) -> Worker:
        if not self._is_imported:
            try:
                self._machine.spend("import", timeout_ms)
            except TimeoutError as error:
                raise WorkerError("was not imported") from error
        if self.refuses:
            raise ForkRefusedError("importing the framework started 2 threads")
        self._is_imported = True
        return Worker(self._machine, is_forked=True, keeps_freed_memory=keeps_freed_memory)

    def close(self) -> None:
        self.is_closed = True


class Worker:
    """A measuring process of a machine."""

    pid = 1

    def __init__(self, machine: Machine, *, is_forked: bool = False, keeps_freed_memory: bool | None = True) -> None:
        self._machine = machine
        self._keeps_freed_memory = keeps_freed_memory
        self.is_forked = is_forked
        self.is_closed = False
        self._is_asked = False
        machine.workers.append(self)

    def ask(self, do: str, timeout_ms: float, **_: object) -> dict[str, Any]:
        try:
            if not self._is_asked and do != "ready" and "first" in self._machine.seconds_of:
                self._machine.spend("first", timeout_ms)
            self._is_asked |= do != "ready"
            assert (do == "script") is (self._keeps_freed_memory is None)
            self._machine.spend(do, timeout_ms)
        except TimeoutError as error:
            raise WorkerError("gave no answer") from error
        return dict(ANSWERS[do])

    def send(self, do: str, **_: object) -> None:
        self._machine.running.add(self)
        self._machine.together = len(self._machine.running)

    def receive(self, timeout_ms: float) -> dict[str, Any]:
        machine = self._machine
        answer = self.ask("measure", timeout_ms)
        machine.running.discard(self)
        return answer | {"step_ms_mean": 10.0 * (1.0 + machine.lost if machine.together > 1 else 1.0)}

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
