"""What a job has ahead after it waited, on a device that something holds up.

A CPU quota is granted period by period, and a job that always computes uses each as it comes. One that waits finds a
whole one at its end, together with what the system kept for it of the one before: it computes at full speed for a
moment. So after a wait it needs less time for the same work than the device's speed says, and keeps more of its share
of the device busy than the rest of its step:

    saved by a wait = head start / share, at most the wait itself
    computing       = step without a wait - saved, at least what the work takes on the device when nothing holds it up
    step            = wait + computing
    busy            = share x step without a wait / step

On a quota of share r of a core in periods of P ms the head start is r x (1 - r) x P, half of it at either end of the
wait, and what the system keeps, at most 1 ms under Linux: 1.9 to 2.1 ms of the waiting jobs of the demo at a third and
at two thirds of a core in periods of 5 ms. On a device that nothing holds up the share is 1: nothing changes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStart:
    """What a wait is worth on one device.

    Attributes:
        device_ms: Device time that a job gets after a wait beyond its share, 0 or more.
        share: Of the time, that a job gets which never waits, 0 to 1.
    """

    device_ms: float
    share: float

    def computing_ms(self, busy_step_ms: float, wait_ms: float) -> float:
        """Return how long a step computes that begins with a wait, ms; it never falls as either argument rises.

        Args:
            busy_step_ms: What the step takes without the wait, 0 or more.
            wait_ms: 0 or more; the step as a whole never takes less than without it.
        """
        return max(self.share * busy_step_ms, busy_step_ms - self._saved_ms(wait_ms))

    def busy_step_ms(self, computing_ms: float, wait_ms: float) -> float:
        """Return what a step takes without its wait, from how long it computes after it: undoes `computing_ms`."""
        saved_ms = self._saved_ms(wait_ms)
        return min(computing_ms / self.share, computing_ms + saved_ms) if saved_ms else computing_ms

    def _saved_ms(self, wait_ms: float) -> float:
        return min(self.device_ms / self.share, wait_ms) if self.device_ms and self.share else 0.0


NO_HEAD_START: Final = HeadStart(device_ms=0.0, share=1.0)
