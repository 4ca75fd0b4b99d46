"""Proof that the multi-process service lets kernels of two processes run at the same time.

A kernel of one block leaves nearly the whole GPU free. Two processes that launch such kernels one after the other get
through as many together as one does alone when the GPU is sliced in time, and through twice as many when it is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from cotenant_profiler import system_clock
from cotenant_profiler.errors import OutOfMemoryError
from cotenant_profiler.measured_device import WorkerPlace
from cotenant_profiler.mps import MpsDaemon
from cotenant_profiler.worker_client import WorkerClient

# Two processes: 1 = they took turns, 2 = neither noticed the other. Between the two limits nothing is proved.
TURNS_RATIO_MAX = 1.3
TOGETHER_RATIO_MIN = 1.6
LIMIT_BYTES = 2 << 30
WINDOW_MS = 2_000
LEAD_MS = 60
# About a millisecond on every GPU of the last ten years.
KERNEL_CYCLES = 1_500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsProof:
    """What two processes got through together, over what one gets through alone.

    Attributes:
        sliced_ratio: Without the service, 1 to 2.
        shared_ratio: As clients of the service, 1 to 2.
        memory_limit_holds: Whether a client was refused memory beyond its limit.
    """

    sliced_ratio: float
    shared_ratio: float
    memory_limit_holds: bool

    @property
    def works(self) -> bool:
        """Whether kernels ran at the same time under the service and only under it."""
        return self.sliced_ratio <= TURNS_RATIO_MAX and self.shared_ratio >= TOGETHER_RATIO_MIN

    def facts(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {**asdict(self), "works": self.works}


class ProbedGpu(Protocol):
    """What the proof needs of a GPU."""

    def count_kernels(self, processes: int, environment: Mapping[str, str]) -> int:
        """Return how many small kernels so many processes with these variables got through together."""
        ...

    def refuses(self, memory_bytes: int, environment: Mapping[str, str]) -> bool:
        """Return whether a process with these variables cannot have so much memory."""
        ...


def prove_mps(gpu: ProbedGpu, daemon: MpsDaemon) -> MpsProof:
    """Measure whether the open `daemon` shares `gpu`.

    Raises:
        WorkerError: A process ended or was silent, e.g. because it could not reach the service.
    """
    alone = max(1, gpu.count_kernels(1, {}))
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_BYTES >> 20}M"}
    return MpsProof(
        sliced_ratio=round(gpu.count_kernels(2, {}) / alone, 3),
        shared_ratio=round(gpu.count_kernels(2, daemon.environment) / alone, 3),
        memory_limit_holds=gpu.refuses(2 * LIMIT_BYTES, {**daemon.environment, **limit}),
    )


class WorkersOnGpu:
    """A GPU probed by measuring processes on it."""

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place

    def count_kernels(self, processes: int, environment: Mapping[str, str]) -> int:
        """See `ProbedGpu.count_kernels`."""
        workers = [WorkerClient(self._with(environment)) for _ in range(processes)]
        try:
            for worker in workers:
                worker.ask("spin", start_ns=0, window_ms=0, cycles=KERNEL_CYCLES)
            start_ns = system_clock.now_ns() + LEAD_MS * 1_000_000
            for worker in workers:
                worker.send("spin", start_ns=start_ns, window_ms=WINDOW_MS, cycles=KERNEL_CYCLES)
            return sum(worker.receive()["kernels"] for worker in workers)
        finally:
            for worker in workers:
                worker.close()

    def refuses(self, memory_bytes: int, environment: Mapping[str, str]) -> bool:
        """See `ProbedGpu.refuses`."""
        with WorkerClient(self._with(environment)) as worker:
            try:
                worker.ask("hold", bytes=memory_bytes)
            except OutOfMemoryError:
                return True
        return False

    def _with(self, environment: Mapping[str, str]) -> WorkerPlace:
        return WorkerPlace(arguments=self._place.arguments, environment={**self._place.environment, **environment})
