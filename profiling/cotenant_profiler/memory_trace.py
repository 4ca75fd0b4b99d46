"""Memory of a job over time: samples at random instants, and the two states in which a training loop is.

Source: OJPP paper, section 3.2 (a job's memory as <gamma, delta, p> from 100 samples over at least 20 iterations).
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
# Two groups closer than this are one state: their distance in spreads, and in parts of the lower one. Halves of a
# normal distribution are 2.65 of their spreads apart, halves of a uniform one 3.46: neither has two states.
SEPARATION_MIN = 3.5
DELTA_RATIO_MIN = 0.02


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStates:
    """The low and the high state of a job.

    Attributes:
        gamma_bytes: Mean of the low state.
        delta_bytes: From there to the peak.
        high_ratio: Share of the time in the high state, the paper's p.
    """

    gamma_bytes: float
    delta_bytes: float
    high_ratio: float


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
    """Reads memory at given instants, beside the thread that trains."""

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


def memory_states(allocated_bytes: Sequence[float], peak_bytes: float) -> MemoryStates:
    """Return the two states of a trace; a trace that has only one gives its peak and never the high state.

    Args:
        allocated_bytes: Samples, at least one.
        peak_bytes: Peak of the allocator: samples seldom meet it.
    """
    single = MemoryStates(gamma_bytes=peak_bytes, delta_bytes=0.0, high_ratio=0.0)
    split = _split(sorted(allocated_bytes))
    if split is None:
        return single
    low, high = split
    gamma_bytes = statistics.fmean(low)
    distance = statistics.fmean(high) - gamma_bytes
    spread = (statistics.pstdev(low) * len(low) + statistics.pstdev(high) * len(high)) / len(allocated_bytes)
    delta_bytes = peak_bytes - gamma_bytes
    if distance < SEPARATION_MIN * spread or delta_bytes < DELTA_RATIO_MIN * gamma_bytes:
        return single
    return MemoryStates(gamma_bytes=gamma_bytes, delta_bytes=delta_bytes, high_ratio=len(high) / len(allocated_bytes))


def _split(ordered: Sequence[float]) -> tuple[Sequence[float], Sequence[float]] | None:
    """Otsu's threshold: the cut with the largest variance between the two sides; None when all samples are equal."""
    total = sum(ordered)
    best, cut, below = 0.0, 0, 0.0
    for count in range(1, len(ordered)):
        below += ordered[count - 1]
        if ordered[count] == ordered[count - 1]:
            continue
        low, high = below / count, (total - below) / (len(ordered) - count)
        between = count * (len(ordered) - count) * (high - low) ** 2
        if between > best:
            best, cut = between, count
    return (ordered[:cut], ordered[cut:]) if cut else None
