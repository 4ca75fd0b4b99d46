"""Facts about the memory of jobs that release it between their peaks."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_service.core.events import AttemptReport


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReported(AttemptReport):
    """What a job had allocated, with all that its processes hold besides.

    Attributes:
        used_bytes: The most since the last report, on the device of which it takes most.
        low_bytes: What it holds all the time, over the newest minutes; 0 = too little was seen so far, here and below.
        extra_bytes: On top of that at its peaks.
        high_state_ratio: Share of time above `low_bytes`.
    """

    used_bytes: int
    low_bytes: int = 0
    extra_bytes: int = 0
    high_state_ratio: float = 0.0
