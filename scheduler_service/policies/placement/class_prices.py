"""What load classes cost shapes of jobs, kept from decision to decision."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.change_log import ChangeLog

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


class ClassCosts:
    """What the load classes cost one shape of job, by number; grows with them.

    Attributes:
        costs: Infinite = the job may not come there, or the class has no price yet.
        unasked: The same where the jobs there were not asked for their consent, which most of the time goes into.
        nearness: How near to a start the job is on the classes that refuse it (`nearness_of`), and whether the reason
            names the GPU.
    """

    def __init__(self) -> None:
        self.costs, self.unasked = CostColumn(), CostColumn()
        self.nearness: dict[int, tuple[int, float, bool]] = {}


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
        return self._by_shape.setdefault(shape, ClassCosts())
