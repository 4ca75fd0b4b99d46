"""How ten minutes are divided: predictions first, then networks one by one, with a part kept for pairs.

What a part leaves over goes to the next one. No single network may take more than a few times its even share, so that
one that is slow here costs itself and not those after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PREDICTING_RATIO: Final = 0.35
PAIRS_RATIO: Final = 0.25
"""Of the whole time; predictions and networks end before their ends, pairs have what is left, this much at least."""
SHARES_MAX: Final = 3.0
LEAST_MS: Final = 8_000.0
"""A start of a measuring process and its shortest windows: with less left nothing is begun."""


@dataclass(frozen=True, slots=True)
class TimePlan:
    """The time of one run.

    Attributes:
        clock: Monotonic, nanoseconds.
        begin_ns: When it began, by that clock.
        whole_ms: How long it may be.
    """

    clock: Callable[[], int]
    begin_ns: int
    whole_ms: float

    @classmethod
    def start(cls, clock: Callable[[], int], whole_ms: float) -> TimePlan:
        """Returns the plan of a run that begins now."""
        return cls(clock, clock(), whole_ms)

    def predicting_ms(self) -> float:
        """Milliseconds that predictions still have; 0 or less = none."""
        return self._left_ms(PREDICTING_RATIO)

    def network_ms(self, left: int) -> float | None:
        """Milliseconds that the next of `left` networks may take; None = not to be begun."""
        return _share_ms(self._left_ms(1.0 - PAIRS_RATIO), left)

    def pair_ms(self, left: int) -> float | None:
        """Milliseconds that the next of `left` pairs may take; None = not to be begun."""
        return _share_ms(self._left_ms(1.0), left)

    def _left_ms(self, until_ratio: float) -> float:
        return self.whole_ms * until_ratio - (self.clock() - self.begin_ns) / 1e6


def _share_ms(left_ms: float, parts: int) -> float | None:
    if left_ms < LEAST_MS:
        return None
    return min(left_ms, max(LEAST_MS, SHARES_MAX * left_ms / max(parts, 1)))
