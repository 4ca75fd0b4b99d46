"""Averages of what was measured here: step times alone, slowdowns of pairs.

A window in which others used the GPU is doubtful. It counts only as long as there are no others, so that something is
known at all; the first sound window begins anew, and after it doubtful ones change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_service.core.records import PairPrediction

PAST_WEIGHT_RATIO = 0.9
"""Weight of the past in a moving average (OJPP Eq. 18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        answers: What was answered about it, by micro-batch.
        is_doubtful: As in `SoloStep`.
    """

    slowdown_ratio: float
    windows: int = 1
    is_doubtful: bool = False
    answers: dict[int, PairPrediction] = field(default_factory=dict)


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
