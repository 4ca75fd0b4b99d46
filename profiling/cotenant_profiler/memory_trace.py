"""Memory of a job over time: samples at random instants.

Source: OJPP paper, section 3.2 (100 samples over at least 20 iterations).
"""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant_profiler import system_clock
from cotenant_profiler.training_loop import SEED, TrainingLoop

WARM_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Memory of the job, without interpreter and libraries, at one instant.

    Attributes:
        offset_ms: Since the first sampled step began.
        allocated_bytes: Held now.
        reserved_bytes: Most that was held until now: what an allocator that keeps freed memory would hold.
    """

    offset_ms: int
    allocated_bytes: int
    reserved_bytes: int


def sample_memory(
    build: Callable[[], TrainingLoop],
    read: Callable[[], tuple[int, int]],
    *,
    wait_ms: float,
    samples: int,
    steps_min: int,
    duration_ms_max: float,
) -> list[MemorySample]:
    """Train a fresh job and sample its memory at instants that are uniform over the time of its steps.

    Args:
        build: Makes the job; its own memory counts.
        read: Allocated and reserved memory of the job now, bytes.
        wait_ms: Waiting per step.
        samples: Number of instants.
        steps_min: Steps that the instants shall cover.
        duration_ms_max: Time that they may cover.
    """
    loop = build()
    steps = [loop.step(wait_ms) for _ in range(WARM_STEPS)]
    step_ms = statistics.median((step.end_ns - step.begin_ns) / 1e6 for step in steps)
    duration_ms = min(duration_ms_max, steps_min * step_ms)
    instants = random.Random(SEED)
    offsets_ms = sorted(instants.uniform(0, duration_ms) for _ in range(samples))
    sampler = _Sampler(offsets_ms, read)
    sampler.start()
    while sampler.is_alive():
        loop.step(wait_ms)
    sampler.join()
    return sampler.samples


class _Sampler(threading.Thread):
    """Reads memory at given instants, in parallel with the training thread."""

    def __init__(self, offsets_ms: Sequence[float], read: Callable[[], tuple[int, int]]) -> None:
        super().__init__(daemon=True)
        self._offsets_ms = offsets_ms
        self._read = read
        self.samples: list[MemorySample] = []

    def run(self) -> None:
        begin_ns = system_clock.now_ns()
        peak_bytes = 0
        for offset_ms in self._offsets_ms:
            system_clock.sleep_until_ns(begin_ns + round(1e6 * offset_ms))
            allocated_bytes, reserved_bytes = self._read()
            peak_bytes = max(peak_bytes, reserved_bytes)
            self.samples.append(
                MemorySample(
                    offset_ms=(system_clock.now_ns() - begin_ns) // 1_000_000,
                    allocated_bytes=allocated_bytes,
                    reserved_bytes=peak_bytes,
                )
            )
