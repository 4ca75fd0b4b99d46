"""The sums of ends of `pair_sharing` over columns: of pairs, and of gangs of many lengths at once.

Source:
    The SJF-BSBF paper, Algorithm 2 and Theorem 1; the formulas are those of `pair_sharing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.policies.pair_sharing import ROUNDING_RATIO

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The jobs that hold GPUs of their own and whose remaining time is known, by number.

    Attributes:
        rests_ms: How long each still needs alone.
        classes: The load class of those GPUs.
        gpus: How many they are.
    """

    rests_ms: Column
    classes: NDArray[np.intp]
    gpus: NDArray[np.intp]


def least_sums(left: Column | int, options: Sequence[Sequence[Column]], full_ms: Column, partner: Column) -> Column:
    """Return the least sum of both ends over sub-batches, where it beats waiting; infinite elsewhere.

    Args:
        left: Steps of the new job.
        options: (time of a step, slowdown of the new job, of its partner) of every sub-batch.
        full_ms: Time of a step of the new job alone, with its whole batch at once.
        partner: How long the partners still need alone; infinite = unknown.
    """
    best: Column = np.full(np.broadcast_shapes(np.shape(left), partner.shape), inf)
    for step_ms, own, other in options:
        best = np.fmin(best, _shared_sums(left * step_ms, own, other, partner))
    waiting = left * full_ms + 2 * partner
    is_worth = best < waiting - ROUNDING_RATIO * waiting
    return np.where(is_worth & np.isfinite(partner), best, inf)


def may_pay_as_gang(
    running: RunningJobs, options: Column, left: Column, gpus: int, free_count: int
) -> NDArray[np.bool_]:
    """Say for gangs of many lengths whether sharing may be better for all jobs together than waiting.

    A gang takes the GPUs with the least sums of ends, free ones last. It ends no sooner than it would beside any one
    of the jobs that it meets, and none of those ends sooner than beside a gang that ends then: this bounds the sum
    from below, and is the sum itself where all slow the gang down alike. Where equal sums leave open whom it meets,
    the answer is yes.

    Args:
        running: Whom it may meet.
        options: (time of a step, slowdown of the gang, of the partner, time of a full step) by running job.
        left: Steps of each gang, one per row.
        gpus: GPUs of each.
        free_count: GPUs that hold nothing.
    """
    step_ms, own, other, full_ms = options.T
    sums = least_sums(left, [(step_ms, own, other)], full_ms, running.rests_ms)
    is_enough: NDArray[np.bool_] = np.isfinite(sums) @ running.gpus + free_count >= gpus
    if not is_enough.any():
        return is_enough
    order = np.argsort(sums, axis=1)[:, : gpus + 1]
    cheapest = np.take_along_axis(sums, order, axis=1)
    before = np.cumsum(running.gpus[order], axis=1) - running.gpus[order]
    is_met = (before < gpus) & np.isfinite(cheapest)
    is_open = (is_met[:, :-1] & (cheapest[:, 1:] == cheapest[:, :-1])).any(axis=1) | ~is_met.any(axis=1)
    own_pace, other_pace, rests = 1 + own[order], 1 + other[order], running.rests_ms[order]
    new, shared_until = left * step_ms.min(), rests * other_pace
    end = np.where(is_met, np.minimum(new * own_pace, new + shared_until * (1 - 1 / own_pace)), 0.0).max(axis=1)
    ends = np.minimum(shared_until, rests + end[:, None] * (1 - 1 / other_pace))
    shared = end + np.where(is_met, ends, 0.0).sum(axis=1)
    known = np.where(is_met, rests, 0.0)
    waiting = known.sum(axis=1) + known.max(axis=1) + new[:, 0]
    may_pay: NDArray[np.bool_] = is_enough & (is_open | (shared < waiting - ROUNDING_RATIO / 2 * waiting))
    return may_pay


def _shared_sums(rest: Column, own: Column, other: Column, partner: Column) -> Column:
    """Return `pair_sharing.shared_pair_sum_ms` for one partner each, rounded alike."""
    alone_from, newcomer = partner * (1 + other), rest * (1 + own)
    outlives = alone_from + (rest - alone_from / (1 + own)) + alone_from
    ends_first = newcomer + (newcomer + partner - newcomer / (1 + other))
    sums: Column = np.where(
        newcomer > alone_from, outlives, np.where(newcomer == alone_from, newcomer + alone_from, ends_first)
    )
    return sums
