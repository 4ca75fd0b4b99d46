"""How many GPUs each job gets so that the sum of the jobs' costs is least: an exact knapsack over counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt


def cheapest_counts(costs: Sequence[Mapping[int, float]], gpus: int) -> list[int]:
    """Return one count per job; the counts pass `gpus` in no case, and their costs have the least sum.

    Args:
        costs: By GPU count, for every job; a count that is absent is no option. Every job has one that fits.
        gpus: GPUs to give, at least 0.

    Raises:
        ValueError: The smallest counts of all jobs pass `gpus`.
    """
    least = np.zeros(gpus + 1)
    choices: list[tuple[list[int], npt.NDArray[np.uint16]]] = []
    for options in costs:
        counts = sorted(count for count in options if count <= gpus)
        # Of equal costs the smaller count wins, since argmin returns the first.
        sums = np.full((len(counts), gpus + 1), np.inf)
        for row, count in enumerate(counts):
            sums[row, count:] = least[: gpus + 1 - count] + options[count]
        if not counts:
            raise ValueError("a job has no count that fits")
        best = sums.argmin(axis=0)
        least = sums[best, np.arange(gpus + 1)]
        choices.append((counts, best.astype(np.uint16)))
    if not np.isfinite(least[gpus]):
        raise ValueError("the smallest counts of all jobs pass the GPUs")
    chosen, left = [], gpus
    for counts, best in reversed(choices):
        count = counts[int(best[left])]
        chosen.append(count)
        left -= count
    return chosen[::-1]
