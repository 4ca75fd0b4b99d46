"""Choosing how often each of many patterns is used: the one kind of integer program that the rulers need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`least <= sum(factor * use[pattern]) <= most`."""

    factors: dict[int, float]
    least: float
    most: float


@dataclass(slots=True)
class IntegerProgram:
    """Patterns with prices and the rows that bind their uses.

    Attributes:
        prices: Of using each pattern once; the sum is minimised.
        limits: How often each may be used at most.
        rows: What else has to hold.
    """

    prices: list[float] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, price: float, limit: int = 1) -> int:
        """Add a pattern and return its number."""
        self.prices.append(price)
        self.limits.append(limit)
        return len(self.prices) - 1

    def require(self, factors: dict[int, float], *, least: float = -np.inf, most: float = np.inf) -> None:
        """Add a row."""
        self.rows.append(Row(factors=factors, least=least, most=most))

    def solve(self) -> list[int] | None:
        """Return how often each pattern is used in an optimum, or None where nothing satisfies the rows.

        Raises:
            RuntimeError: HiGHS gave up; its own words are the message.
        """
        if not self.prices:
            return [] if all(row.least <= 0 <= row.most for row in self.rows) else None
        result = milp(
            np.array(self.prices),
            integrality=np.ones(len(self.prices)),
            bounds=Bounds(0, np.array(self.limits, dtype=float)),
            constraints=[_constraint(self.rows, len(self.prices))] if self.rows else [],
        )
        if result.status == 2:
            return None
        if result.x is None:
            raise RuntimeError(f"the solver found no optimum: {result.message}")
        return [round(use) for use in result.x]


def _constraint(rows: Sequence[Row], patterns: int) -> LinearConstraint:
    entries = [(number, pattern, factor) for number, row in enumerate(rows) for pattern, factor in row.factors.items()]
    places = ([row for row, _, _ in entries], [pattern for _, pattern, _ in entries])
    matrix = coo_array(([factor for _, _, factor in entries], places), shape=(len(rows), patterns))
    return LinearConstraint(matrix.tocsr(), [row.least for row in rows], [row.most for row in rows])
