"""When a service learns from its running jobs by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ON_DRIFT: Final = "drift alarm"
HOUR_MS: Final = 3_600_000
DRIFT_PAUSE_MS: Final = 24 * HOUR_MS
"""So long after a retraining no alarm starts another: what it cannot mend it would try for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingSchedule:
    """What lets a service retrain, behind the gate as ever.

    Attributes:
        every_ms: After so long, if anything was measured since; 0 = never.
        on_drift: While an alarm is on, `DRIFT_PAUSE_MS` after the last retraining at the earliest.
    """

    every_ms: int
    on_drift: bool

    def reason_now(
        self, *, now_ms: int, begun_ms: int, begun_all_ms: int, oldest_ms: int, newest_ms: int, is_alarming: bool
    ) -> str:
        """Returns why it is time to retrain; empty = it is not.

        Args:
            now_ms: The time.
            begun_ms: When the last retraining began; 0 = there was none.
            begun_all_ms: The same of the last one that learned every device type, as an alarm's does not.
            oldest_ms: When the oldest measurement arrived that is kept; 0 = there is none.
            newest_ms: The same of the newest.
            is_alarming: Predictions drift.
        """
        if newest_ms <= begun_ms:
            return ""
        if self.every_ms and now_ms - (begun_all_ms or oldest_ms) >= self.every_ms:
            return f"every {self.every_ms / HOUR_MS:g} hours"
        return ON_DRIFT if self.on_drift and is_alarming and now_ms - begun_ms >= DRIFT_PAUSE_MS else ""
