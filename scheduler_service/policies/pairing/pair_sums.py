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

from scheduler_service.policies.pairing.pair_sharing import ROUNDING_RATIO

Column = NDArray[np.float64]
GANG_NUMBERS = 7
"""How many numbers `gang_option` returns."""
FAR = 1e100
"""Stands for what never ends in products of times and paces, which must not become undefined."""
LEFT_MIN = 1e-9
"""Counts as the steps of a job without any."""
CLOSE_RATIO = 1e-12
"""Sums that differ by less may be in another order where they are rounded otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The jobs that hold GPUs of their own and whose remaining time is known, by number.

    Attributes:
        remaining_times_ms: How long each still needs alone.
        classes: The load class of those GPUs.
        gpus: How many they are.
    """

    remaining_times_ms: Column
    classes: NDArray[np.intp]
    gpus: NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gangs:
    """Jobs on several GPUs, without smaller micro-batches to choose.

    Attributes:
        options: `gang_option`, by shape and running job.
        shapes: The number of the shape of each gang.
        left: Steps of each.
        gpus: GPUs of each shape.
    """

    options: Column
    shapes: NDArray[np.intp]
    left: Column
    gpus: NDArray[np.intp]


def gang_option(
    step_ms: float | None, slowdown_ratio: float, partner_ratio: float
) -> tuple[float, float, float, float, float, float, float]:
    """Return how a gang would go on when sharing with a running job.

    Args:
        step_ms: A step of the gang alone; None = it may not join.
        slowdown_ratio: How much slower it gets.
        partner_ratio: How much slower the running job gets.

    Returns:
        The step, and the factors of both formulas of Theorem 1: of the gang's own remaining time where it ends first,
        of the other's where that one does; then the paces of both, and which share of that time each loses.
    """
    own, other = 1 + slowdown_ratio, 1 + partner_ratio
    paces = own, other, 1 - 1 / own, 1 - 1 / other
    if step_ms is None:
        return FAR, FAR, FAR, *paces
    return step_ms, own * (2 - 1 / other), other * (2 - 1 / own), *paces


def least_sums(left: int | Column, options: Sequence[Sequence[Column]], full_ms: Column, partner: Column) -> Column:
    """Return the least sum of both ends over micro-batches, where it beats waiting; infinite elsewhere.

    Args:
        left: Steps of the new job; with each partner, where its length is unknown.
        options: (time of a step, slowdown of the new job, of its partner) of every micro-batch.
        full_ms: Time of a step of the new job alone, with its whole batch at once.
        partner: How long the partners still need alone; infinite = unknown.
    """
    best: Column = np.full(len(partner), inf)
    for step_ms, own, other in options:
        best = np.fmin(best, _shared_sums(left * step_ms, own, other, partner))
    waiting = left * full_ms + 2 * partner
    is_worth = best < waiting - ROUNDING_RATIO * waiting
    return np.where(is_worth & np.isfinite(partner), best, inf)


def may_pay_as_gangs(gangs: Gangs, running: RunningJobs, free_count: int) -> NDArray[np.bool_]:
    """Return for each gang whether sharing may be better for all jobs together than waiting.

    A gang takes the GPUs with the least sums of ends, free ones last. It ends no sooner than it would with any one
    of its partners, and none of those ends sooner than with a gang that ends then: this bounds the sum from below,
    and is the sum itself where all slow the gang down alike. Where rounding decides which partners it has, the
    answer is yes.

    Args:
        gangs: The gangs that wait.
        running: The jobs with which they may share.
        free_count: GPUs that hold nothing.
    """
    if not len(running.gpus):
        return free_count >= gangs.gpus[gangs.shapes]
    shapes, (step_ms, ends_first, outlives) = gangs.shapes, gangs.options[:3]
    shape, left = shapes[:, None], np.maximum(gangs.left, LEFT_MIN)[:, None]
    new, gpus = left * np.minimum.reduce(step_ms, axis=1)[shape], gangs.gpus[shape]
    # Of the two formulas of Theorem 1 the one that holds is the lesser.
    sums = np.minimum(
        running.remaining_times_ms + new * ends_first[shapes], (running.remaining_times_ms * outlives)[shapes] + new
    )
    limits = (new + 2 * running.remaining_times_ms) * (1 - ROUNDING_RATIO)
    gains = limits - sums
    pays = gains > 0
    is_enough: NDArray[np.bool_] = pays @ running.gpus + free_count >= gpus[:, 0]
    if not is_enough.any():  # most rounds: nothing below changes that
        return is_enough
    is_close = np.abs(gains) <= CLOSE_RATIO * limits
    sums = np.where(pays, sums, inf)
    order = sums.argsort(axis=1)[:, : np.maximum.reduce(gangs.gpus) + 1]
    cheapest, gpus_there = sums[np.arange(len(sums))[:, None], order], running.gpus[order]
    is_met = (np.add.accumulate(gpus_there, axis=1) - gpus_there < gpus) & (cheapest < inf)
    is_tie = is_met[:, :-1] & (cheapest[:, 1:] <= cheapest[:, :-1] * (1 + CLOSE_RATIO))
    is_open = np.logical_or.reduce(is_close, axis=1) | np.logical_or.reduce(is_tie, axis=1) | ~is_met[:, 0]
    own_pace, other_pace, own_loss, other_loss = gangs.options[3:, shape, order]
    remaining_times = running.remaining_times_ms[order]
    until = remaining_times * other_pace
    ends = np.minimum(new * own_pace, new + until * own_loss)
    end = np.maximum.reduce(np.where(is_met, ends, 0.0), axis=1)
    partners_ends = np.minimum(until, remaining_times + end[:, None] * other_loss)
    shared = end + np.add.reduce(np.where(is_met, partners_ends, 0.0), axis=1)
    known = np.where(is_met, remaining_times, 0.0)
    waiting = np.add.reduce(known, axis=1) + np.maximum.reduce(known, axis=1) + new[:, 0]
    found: NDArray[np.bool_] = is_enough & (is_open | (shared < waiting * (1 - ROUNDING_RATIO / 2)))
    return found


def _shared_sums(rest: Column, own: Column, other: Column, partner: Column) -> Column:
    """Return `pair_sharing.shared_pair_sum_ms` for one partner each, rounded alike."""
    alone_from, incoming_job = partner * (1 + other), rest * (1 + own)
    outlives = alone_from + (rest - alone_from / (1 + own)) + alone_from
    ends_first = incoming_job + (incoming_job + partner - incoming_job / (1 + other))
    sums: Column = np.where(
        incoming_job > alone_from, outlives, np.where(incoming_job == alone_from, incoming_job + alone_from, ends_first)
    )
    return sums
