"""Slowdowns of three or more jobs that take turns on one device, from the slowdowns of their pairs.

A job wants the device for its utilization's share of a step and does something else for the rest. While n jobs want it,
each runs at 1/n of its speed: what one job costs another is in proportion to how long it wants the device. With a
third job it wants it longer, because it waits as well, so three jobs slow down more than the sum of their pairs, unless
all of them want the device all the time, when there is nothing to add.

The recursion is mean value analysis of a closed network of one shared queue: a job that comes to the device finds the
others as they are without it. With slowdowns of pairs of u_victim * u_other it is exact for jobs of random turns.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

COLOCATED_JOBS_MAX: Final = 10
"""Jobs on one device; the work doubles with each."""
_UTILIZATION_MIN: Final = 0.05


def compose_time_slices(utilization_ratio: FloatArray, slowdown_ratio: FloatArray) -> FloatArray:
    """Slowdown of every co-located job.

    Args:
        utilization_ratio: Of each job alone, 0 to 1, shape (jobs,), at most `COLOCATED_JOBS_MAX` of them.
        slowdown_ratio: Of each job with each other one alone, victim by other; the diagonal is not looked at. Shape
            (jobs, jobs).

    Returns:
        Shape (jobs,); 0 for a job alone.

    Raises:
        ValueError: More jobs than `COLOCATED_JOBS_MAX`.
    """
    jobs = len(utilization_ratio)
    if jobs > COLOCATED_JOBS_MAX:
        raise ValueError(f"{jobs} jobs, at most {COLOCATED_JOBS_MAX}")
    wants = np.maximum(utilization_ratio, _UTILIZATION_MIN)
    cost = slowdown_ratio / wants[None, :]

    @cache
    def suffer(victim: int, others: frozenset[int]) -> float:
        return float(sum(cost[victim, other] * presence(other, others - {other}) for other in others))

    def presence(job: int, others: frozenset[int]) -> float:
        """Share of its time in which a job wants the device, waiting included."""
        waited = max(suffer(job, others), 0.0)
        return float((wants[job] + waited) / (1.0 + waited))

    everyone = frozenset(range(jobs))
    return np.array([suffer(job, everyone - {job}) for job in range(jobs)], dtype=np.float64)


def slow_by_fair_time_slices(utilization_ratio: FloatArray) -> FloatArray:
    """Slowdown of every co-located job when jobs cost one another nothing but time.

    Args:
        utilization_ratio: Of each job alone, 0 to 1, shape (jobs,), at most `COLOCATED_JOBS_MAX` of them.

    Returns:
        Shape (jobs,). For two jobs the product of both utilizations, see `pair_features.fair_share_slowdowns`.

    Raises:
        ValueError: More jobs than `COLOCATED_JOBS_MAX`.
    """
    return compose_time_slices(
        utilization_ratio, np.outer(utilization_ratio, np.maximum(utilization_ratio, _UTILIZATION_MIN))
    )


def exceed_sum(utilization_ratio: FloatArray) -> FloatArray:
    """By how much fair turns of all co-located jobs slow each job down beyond the sum of its pairs.

    What a co-located job costs beyond its turns (caches that it empties, memory that it reads) it costs once, however
    many others there are; measured pairs therefore add up, and only the turns get longer.

    Args:
        utilization_ratio: Of each job alone, 0 to 1, shape (jobs,), at most `COLOCATED_JOBS_MAX` of them.

    Returns:
        What to add to the sum of slowdowns with each other job alone, at least 0, shape (jobs,).

    Raises:
        ValueError: More jobs than `COLOCATED_JOBS_MAX`.
    """
    of_pairs = utilization_ratio * (utilization_ratio.sum() - utilization_ratio)
    return np.asarray(np.maximum(slow_by_fair_time_slices(utilization_ratio) - of_pairs, 0.0))
