"""What load classes cost shapes of jobs, kept from decision to decision."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.gpu_arrays import Positions
from scheduler_service.core.records import Reason
from scheduler_service.policies.placement.reasons import nearness_of

NO_RANK = 2**62
PRICES_MAX = 2_000_000
"""Prices that are kept; beyond them all are forgotten."""


class CostColumn:
    """Costs by the number of the class.

    Attributes:
        count: Classes that have been looked at.
    """

    def __init__(self) -> None:
        self.count = 0
        self._values = np.full(64, inf)

    @property
    def values(self) -> NDArray[np.float64]:
        """Of the classes that have been looked at."""
        return self._values[: self.count]

    def grow_to(self, count: int) -> NDArray[np.float64]:
        """Have room for so many classes, and return them; those without a price cost everything."""
        if count > len(self._values):
            self._values = np.concatenate((self._values, np.full(max(count, len(self._values)), inf)))
        self.count = count
        return self.values


class AlikeGpus:
    """One GPU of each load class that is left: what refuses a job there does on all of the class.

    Args:
        numbers: Of the classes.
        gpu_ids: Of each its GPU.

    Attributes:
        name_ranks: The places of the ids in their own order.
        most: The largest number.
    """

    def __init__(self, numbers: Positions, gpu_ids: Sequence[str]) -> None:
        self.numbers, self.gpu_ids, self.most = numbers, gpu_ids, int(numbers.max(initial=0))
        self.name_ranks = np.zeros(len(gpu_ids), dtype=np.intp)
        self.name_ranks[sorted(range(len(gpu_ids)), key=gpu_ids.__getitem__)] = np.arange(len(gpu_ids))


class ClassCosts:
    """What the load classes cost one shape of job, by number; grows with them.

    Attributes:
        costs: Infinite = the job may not come there, or the class has no price yet.
        unasked: The same where the jobs there were not asked for their consent, which most of the time goes into.
        nearness: How near to a start the job is on the classes that refuse it.
        impossible: Why it could not start on the empty cluster either; None = not looked at, or it could.
    """

    def __init__(self) -> None:
        self.costs, self.unasked, self.nearness = CostColumn(), CostColumn(), Nearness()
        self.impossible: tuple[Reason | None] | None = None


class Nearness:
    """How near to a start a shape of job is on the classes that refuse it, by number (`nearness_of`)."""

    def __init__(self) -> None:
        self._ranks, self._ratios = np.full((2, 64), inf)
        self._names_gpu = np.zeros(64, dtype=bool)

    def put(self, number: int, reason: Reason) -> None:
        """Note why a class refuses the job; a reason that names the GPU names the first of those that are as near."""
        self._reach(number)
        self._ranks[number], self._ratios[number] = nearness_of(reason)
        self._names_gpu[number] = bool(reason.gpu_ids)

    def unknown(self, alike: AlikeGpus) -> Sequence[int]:
        """Return the places of the classes about which nothing was noted."""
        self._reach(alike.most)
        found: list[int] = np.flatnonzero(self._ranks[alike.numbers] == inf).tolist()
        return found

    def nearest(self, alike: AlikeGpus) -> int | None:
        """Return the place of the class that was nearest to a start; None = nothing is known of any."""
        self._reach(alike.most)
        numbers = alike.numbers
        ranks = self._ranks[numbers]
        least = ranks.min(initial=inf)
        if least == inf:
            return None
        # Of the nearest the least slowdown; of equal ones a reason without a GPU, then that of the first GPU.
        ratios = np.where(ranks == least, self._ratios[numbers], inf)
        orders = np.where(ratios == ratios.min(), np.where(self._names_gpu[numbers], alike.name_ranks, -1), NO_RANK)
        return int(orders.argmin())

    def _reach(self, number: int) -> None:
        more = max(number + 1, 2 * len(self._ranks)) - len(self._ranks) if number >= len(self._ranks) else 0
        if more:
            self._ranks = np.concatenate((self._ranks, np.full(more, inf)))
            self._ratios = np.concatenate((self._ratios, np.full(more, inf)))
            self._names_gpu = np.concatenate((self._names_gpu, np.zeros(more, dtype=bool)))


class PricedClasses:
    """What the load classes cost all shapes, kept with the columns from decision to decision.

    Args:
        changes: Of the predictions; after any of them everything is priced anew.
    """

    def __init__(self, changes: ChangeLog) -> None:
        self._changes, self._count = changes, changes.count
        self._by_shape: dict[object, ClassCosts] = {}

    def of(self, shape: object, classes_count: int) -> ClassCosts:
        """Return what is known of a shape."""
        if self._count != self._changes.count or len(self._by_shape) * classes_count > PRICES_MAX:
            self._count = self._changes.count
            self._by_shape.clear()
        known = self._by_shape.get(shape)
        if known is None:
            known = self._by_shape[shape] = ClassCosts()
        return known
