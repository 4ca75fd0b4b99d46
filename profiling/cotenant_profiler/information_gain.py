"""Which group of jobs to measure next: the most informative one about all pairs, given those measured before.

The slowdown of a victim is thought of as the sum of its own sensitivity and of the effect of each co-located job, both
unknown, with a normal prior. A measurement then narrows the joint distribution by a known amount, whatever its result,
and the next group is the one with the largest information gain. So an unfinished campaign has measured as much as it
could (D-optimal design of a Bayesian linear model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item")

NOISE_VARIANCE_RATIO = 0.25
"""Variance of a measurement and of what the additive table cannot express, over the prior's variance of one effect."""

FloatArray = npt.NDArray[np.float64]


def order_by_information(groups: Sequence[Sequence[Item]]) -> list[int]:
    """Return the indices of the groups, the most informative one first.

    Args:
        groups: Jobs that are measured together; a job may occur twice in a group, a group more than once.

    Returns:
        Every index once. Among equally informative groups the order of the argument holds.
    """
    names = list(dict.fromkeys(job for group in groups for job in group))
    rows = [_rows(group, names) for group in groups]
    covariance = np.eye(2 * len(names))
    left = list(range(len(groups)))
    ordered: list[int] = []
    while left:
        best = max(left, key=lambda index: (round(_gain(rows[index], covariance), 9), -index))
        covariance = _narrowed(rows[best], covariance)
        left.remove(best)
        ordered.append(best)
    return ordered


def _rows(group: Sequence[Item], names: Sequence[Item]) -> FloatArray:
    """One row per victim: its sensitivity and the effects of its co-located jobs, shape (jobs, 2 x names)."""
    rows = np.zeros((len(group), 2 * len(names)))
    for victim, job in enumerate(group):
        rows[victim, names.index(job)] = 1.0
        for other, co_located in enumerate(group):
            if other != victim:
                rows[victim, len(names) + names.index(co_located)] += 1.0
    return rows


def _gain(rows: FloatArray, covariance: FloatArray) -> float:
    """Mutual information, in nats, of one measurement of a group and the unknown effects."""
    spread = np.eye(len(rows)) + rows @ covariance @ rows.T / NOISE_VARIANCE_RATIO
    return float(np.linalg.slogdet(spread).logabsdet) / 2


def _narrowed(rows: FloatArray, covariance: FloatArray) -> FloatArray:
    """The covariance of the effects after a measurement of a group."""
    crossed = covariance @ rows.T
    spread = NOISE_VARIANCE_RATIO * np.eye(len(rows)) + rows @ crossed
    return covariance - crossed @ np.linalg.solve(spread, crossed.T)
