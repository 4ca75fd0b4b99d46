"""Which workers of one job straggle, from what was measured of each of them.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

SLOW_RATIO = 0.5
"""Of the median speed: a worker that is not faster straggles."""
LONG_RATIO = 2.0
"""Of the others' time: a worker that takes as long straggles."""


def asynchronous_stragglers(steps_per_s: Sequence[float]) -> list[int]:
    """Return the workers of an asynchronous job that have at most half the median speed.

    Args:
        steps_per_s: Speed of every worker, above 0.
    """
    if len(steps_per_s) < 2:
        return []
    limit = SLOW_RATIO * median(steps_per_s)
    return [worker for worker, speed in enumerate(steps_per_s) if speed <= limit]


def synchronous_stragglers(computing_ms: Sequence[float], exchange_ms: Sequence[float]) -> list[int]:
    """Return the workers of a synchronous job that compute, or exchange, at least twice as long as the others.

    All workers of such a job are equally fast, since they wait for each other; "the others" are their median.

    Args:
        computing_ms: Time of a step's forward and backward pass, by worker.
        exchange_ms: Time of a step's transfer of gradients and parameters, by worker.
    """
    return sorted({*_much_longer(computing_ms), *_much_longer(exchange_ms)})


def _much_longer(times_ms: Sequence[float]) -> list[int]:
    found = []
    for worker, time_ms in enumerate(times_ms):
        others = [*times_ms[:worker], *times_ms[worker + 1 :]]
        if others and time_ms > 0 and time_ms >= LONG_RATIO * median(others):
            found.append(worker)
    return found
