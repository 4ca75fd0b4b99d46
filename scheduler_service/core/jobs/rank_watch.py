"""Which rank of a gang is slower than the others, from the time that each took for a step of its own. Pure.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 5.2: in a
    synchronous training all ranks make their steps at one speed; one straggles whose own computation takes much longer
    than that of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

RANKS_MIN = 2
TOLD_MS_MAX = 60_000
"""What a rank said longer ago than this, and than the window, says nothing of it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """What one rank took for a step of its own, and when that was told."""

    rank: int
    own_step_ms: float
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWatch:
    """What the ranks of the present attempt said.

    Attributes:
        times: The newest of each rank, by rank.
        slow_rank: The rank that was too slow in all reports since `slow_since_ms`; -1 = none is.
        own_ratio: Its newest time over the median of the others'.
        own_step_ms: Its newest time.
        others_step_ms: That median.
        is_given_up: It was noted that no rank of this attempt is replaced.
    """

    times: tuple[RankTime, ...] = ()
    slow_rank: int = -1
    slow_since_ms: int = 0
    own_ratio: float = 0.0
    own_step_ms: float = 0.0
    others_step_ms: float = 0.0
    is_given_up: bool = False


def with_times(
    before: RankWatch, told: Iterable[tuple[int, float]], *, ranks: int, now_ms: int, window_ms: int, ratio: float
) -> RankWatch:
    """Take in what ranks said.

    Args:
        before: What they said before.
        told: (rank, ms of its own for a step); those that are none of the `ranks` are left out.
        ranks: Of the whole gang, without parameter servers.
        now_ms: When they said it.
        window_ms: For so long one must be slow; at most so old is what counts.
        ratio: Over the median of the others from which on one is too slow.
    """
    oldest_ms = now_ms - max(window_ms, TOLD_MS_MAX)
    known = {one.rank: one for one in before.times if one.at_ms >= oldest_ms}
    newest = (RankTime(rank=rank, own_step_ms=own_ms, at_ms=now_ms) for rank, own_ms in told if 0 <= rank < ranks)
    known |= {one.rank: one for one in newest}
    times = tuple(known[rank] for rank in sorted(known))
    if len(times) < RANKS_MIN:
        return replace(before, times=times, slow_rank=-1)
    slowest = max(times, key=lambda one: one.own_step_ms)
    rank, own_ms = slowest.rank, slowest.own_step_ms
    others_ms = median(one.own_step_ms for one in times if one is not slowest)
    if own_ms < ratio * others_ms:
        return replace(before, times=times, slow_rank=-1)
    return replace(
        before,
        times=times,
        slow_rank=rank,
        slow_since_ms=before.slow_since_ms if before.slow_rank == rank else now_ms,
        own_ratio=own_ms / others_ms,
        own_step_ms=own_ms,
        others_step_ms=others_ms,
    )
