"""What is known of when a job with a target loss ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """What is known of when a job reaches its target loss; steps are optimizer steps since its very first start.

    Attributes:
        steps_max: What its owner stated; 0 = nothing.
        losses: (steps done, loss) as reported, oldest first; thinned.
        spacing_steps: Least distance of two of them.
        asked_at_step: Up to where the losses of the newest question went; -1 = none was asked.
        is_asked: An answer is awaited.
        steps_total: When the target is reached; 0 = not foreseeable, or not asked yet.
        steps_lower: Lower end of the interval.
        steps_upper: Upper end of the interval.
        confidence: Of the interval.
        is_reliable: The fitted shapes agree.
        is_reached: The losses have come down to the target.
        losses_fitted: To how many losses the answer is fitted.
        code: Why nothing is foreseen; empty = something is, or nothing was asked.
    """

    steps_max: int = 0
    losses: tuple[tuple[int, float], ...] = ()
    spacing_steps: int = 1
    asked_at_step: int = -1
    is_asked: bool = False
    steps_total: int = 0
    steps_lower: int = 0
    steps_upper: int = 0
    confidence: float = 0.0
    is_reliable: bool = False
    is_reached: bool = False
    losses_fitted: int = 0
    code: str = ""
