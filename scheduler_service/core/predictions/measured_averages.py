"""Averages of what was measured here: step times alone, slowdowns of pairs.

A window in which others used the GPU is doubtful. It counts only as long as there are no others, so that something is
known at all; the first sound window begins anew, and after it doubtful ones change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.records import PairPrediction

Sizes = tuple[int, int]
"""Micro-batches of a victim and of its co-located job; 0 = any."""
PAST_WEIGHT_RATIO = 0.9
"""Weight of the past in a moving average (OJPP Eq. 18)."""


@slotted_record
class SoloStep:
    """Step time of a key alone on its GPUs, over every window measured so far.

    Attributes:
        is_doubtful: Others used a GPU in every one of them.
    """

    steps: int
    window_ms: int
    is_doubtful: bool = False

    @property
    def step_ms(self) -> float:
        """Mean over all windows."""
        return self.window_ms / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSlowdown:
    """Moving average of a measured pair.

    Attributes:
        windows: Over how many.
        answers: What was answered about it, by micro-batches.
        is_doubtful: As in `SoloStep`.
    """

    slowdown_ratio: float
    windows: int = 1
    is_doubtful: bool = False
    answers: dict[Sizes, PairPrediction] = field(default_factory=dict)


def at_sizes(
    known: Mapping[Sizes, PairPrediction] | None, micro_batch_size: int, other_micro_batch_size: int
) -> PairPrediction | None:
    """Return what is known of a pair at these micro-batches, else at the victim's, at the other job's, or at any."""
    if not known:
        return None
    if len(known) == 1:  # nearly every pair was asked about once
        (pair,) = known.values()
        fits = pair.micro_batch_size in (0, micro_batch_size)
        return pair if fits and pair.other_micro_batch_size in (0, other_micro_batch_size) else None
    return next((known[one] for one in preferred(micro_batch_size, other_micro_batch_size) if one in known), None)


def preferred(micro_batch_size: int, other_micro_batch_size: int) -> tuple[Sizes, Sizes, Sizes, Sizes]:
    """Return at which micro-batches an answer about a pair is looked for, the nearest first."""
    return (micro_batch_size, other_micro_batch_size), (micro_batch_size, 0), (0, other_micro_batch_size), (0, 0)


def moving_average(past: float | None, sample: float) -> float:
    """Return the new average; the first sample is taken as it is."""
    return sample if past is None else PAST_WEIGHT_RATIO * past + (1 - PAST_WEIGHT_RATIO) * sample


def with_windows(
    past: ObservedSlowdown | None, slowdown_ratio: float, windows: int, *, is_doubtful: bool
) -> ObservedSlowdown:
    """Return the average of a pair with measured windows folded in."""
    if past is not None and past.is_doubtful != is_doubtful:
        if is_doubtful:
            return past
        past = None
    return ObservedSlowdown(
        slowdown_ratio=moving_average(past.slowdown_ratio if past is not None else None, slowdown_ratio),
        windows=windows + (past.windows if past is not None else 0),
        is_doubtful=is_doubtful,
    )


def with_steps(past: SoloStep | None, steps: int, window_ms: int, *, is_doubtful: bool) -> SoloStep:
    """Return the step time of a key with one window added."""
    if past is not None and past.is_doubtful != is_doubtful:
        if is_doubtful:
            return past
        past = None
    return SoloStep(
        steps=steps + (past.steps if past is not None else 0),
        window_ms=window_ms + (past.window_ms if past is not None else 0),
        is_doubtful=is_doubtful,
    )
