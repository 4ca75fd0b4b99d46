"""Scripts of a simulated cluster that say how many steps they have: rightly, wrongly, another number each time."""

from __future__ import annotations

import random
from dataclasses import replace

from scheduler_service.core.records import JobRequest


class ScriptTotals:
    """Draws of its own, so that what else happens to a seed stays as it was."""

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(seed + 1)

    def left_to_script(self, request: JobRequest) -> JobRequest:
        """Return a request; of every third one the owner states no steps."""
        return replace(request, steps_total=0) if self._generator.random() < 1 / 3 else request

    def said(self, steps_done: int) -> int:
        """Return what a script says of its steps after so many; 0 = nothing."""
        return self._generator.choice((0, 0, steps_done - 1, steps_done, self._generator.randrange(1, 40)))
