"""When do jobs end that share a GPU, and is that better than one after the other?

Everything is counted in ms from now. xi = 1 + slowdown ratio (Eq. 5, 6). Job A is new, the others run.

Source:
    The SJF-BSBF paper, section V-A. Theorem 1: A starts at once or when the running job has ended, nothing between is
    better. Its proof swaps the two jobs' names; right is, for a start after kappa in [0, r_B]: the sum of both ends
    rises with slope 1 until kappa* = r_B - xi_A r_A / xi_B and is linear after it, so the least is at 0 or at r_B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROUNDING_RATIO = 1e-9
"""Sums that differ by less are equal: with xi = 1.5 on both sides sharing and waiting tie, whichever job is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoLocatedJob:
    """A running job whose GPU a new one would share.

    Attributes:
        remaining_ms: How long it still needs alone (r_B).
        slowdown_ratio: How much the new job slows it down; 0.2 = xi_B of 1.2.
        incoming_slowdown_ratio: How much it slows the new job down.
    """

    remaining_ms: float
    slowdown_ratio: float
    incoming_slowdown_ratio: float

    @property
    def end_if_shared_throughout_ms(self) -> float:
        """When it ends if the new job outlives it."""
        return self.remaining_ms * (1 + self.slowdown_ratio)


def micro_batch_sizes_of(samples: int) -> Iterator[int]:
    """Yield ceil(samples / s) for s = 1, 2, 4 ... down to 1 (Algorithm 2, which stops one step too early)."""
    steps = 1
    while True:
        micro_batch_size = -(-samples // steps)
        yield micro_batch_size
        if micro_batch_size == 1:
            return
        steps *= 2


def incoming_job_end_ms(remaining_ms: float, partners: Sequence[CoLocatedJob]) -> float:
    """Return when the new job ends if it starts now; all its GPUs go at the pace of the slowest.

    Args:
        remaining_ms: How long it needs alone, at the micro-batch that it would use.
        partners: The jobs with which it would share, each once.
    """
    now_ms, left_ms = 0.0, remaining_ms
    leaving = sorted(partners, key=lambda partner: partner.end_if_shared_throughout_ms)
    for position, partner in enumerate(leaving):
        pace = 1 + max(other.incoming_slowdown_ratio for other in leaving[position:])
        until_ms = partner.end_if_shared_throughout_ms
        if now_ms + left_ms * pace <= until_ms:
            return now_ms + left_ms * pace
        left_ms -= (until_ms - now_ms) / pace
        now_ms = until_ms
    return now_ms + left_ms


def shared_sum_ms(remaining_ms: float, partners: Sequence[CoLocatedJob]) -> float:
    """Return the sum of the ends of all if the new job starts now (Eq. 18 and 19, 22 and 23 at kappa 0)."""
    incoming_end_ms = incoming_job_end_ms(remaining_ms, partners)
    return incoming_end_ms + sum(_partner_end_ms(partner, incoming_end_ms) for partner in partners)


def shared_pair_sum_ms(
    remaining_ms: float, partner_remaining_ms: float, slowdown_ratio: float, partner_ratio: float
) -> float:
    """Return `shared_sum_ms` with one running job, whose slowdown ratio comes last."""
    alone_from_ms, incoming_end_ms = partner_remaining_ms * (1 + partner_ratio), remaining_ms * (1 + slowdown_ratio)
    if incoming_end_ms > alone_from_ms:
        return alone_from_ms + (remaining_ms - alone_from_ms / (1 + slowdown_ratio)) + alone_from_ms
    if alone_from_ms <= incoming_end_ms:
        return incoming_end_ms + alone_from_ms
    return incoming_end_ms + (incoming_end_ms + partner_remaining_ms - incoming_end_ms / (1 + partner_ratio))


def _partner_end_ms(partner: CoLocatedJob, incoming_end_ms: float) -> float:
    if partner.end_if_shared_throughout_ms <= incoming_end_ms:
        return partner.end_if_shared_throughout_ms
    return incoming_end_ms + partner.remaining_ms - incoming_end_ms / (1 + partner.slowdown_ratio)


def waiting_sum_ms(full_batch_remaining_ms: float, partners: Sequence[CoLocatedJob]) -> float:
    """Return the same sum if the new job waits for the last of them and then runs alone, at its full batch."""
    remaining_times = [partner.remaining_ms for partner in partners]
    return sum(remaining_times) + max(remaining_times, default=0.0) + full_batch_remaining_ms


def is_worth_sharing(shared_ms: float, waiting_ms: float) -> bool:
    """Return whether the sum of all ends is less when the new job starts now; a tie is none, however it was rounded."""
    return shared_ms < waiting_ms - ROUNDING_RATIO * waiting_ms
