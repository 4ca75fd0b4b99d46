"""Memory of the jobs of this process on their device: resident memory of the process, or PyTorch's own counters."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from cotenant_profiler.resident_memory import peak_above, resident_bytes


@dataclass(slots=True)
class DeviceMemory:
    """Memory of a measurement window, known once it has ended.

    Attributes:
        peak_bytes: Most that was allocated at once.
        reserved_bytes: Most that the allocator held; 0 where there is no allocator of the device's own.
        baseline_bytes: Held before the work: interpreter and libraries on a CPU, nothing on a GPU.
    """

    peak_bytes: int = 0
    reserved_bytes: int = 0
    baseline_bytes: int = 0


@contextlib.contextmanager
def peak(device: str) -> Iterator[DeviceMemory]:
    """Measure the body's peak memory on a device, cpu or cuda."""
    memory = DeviceMemory()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        yield memory
        memory.peak_bytes = torch.cuda.max_memory_allocated()
        memory.reserved_bytes = torch.cuda.max_memory_reserved()
        return
    with peak_above() as resident:
        yield memory
    memory.peak_bytes, memory.baseline_bytes = resident.peak_bytes, resident.baseline_bytes


def reader(device: str) -> Callable[[], tuple[int, int]]:
    """Return a function that reads what is allocated and what is reserved now, bytes above the present state."""
    if device == "cuda":
        return lambda: (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
    gc.collect()
    baseline_bytes = resident_bytes()

    def read() -> tuple[int, int]:
        held_bytes = max(0, resident_bytes() - baseline_bytes)
        return held_bytes, held_bytes

    return read


def give_back(device: str) -> None:
    """Return the memory of jobs that are gone to the device."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
