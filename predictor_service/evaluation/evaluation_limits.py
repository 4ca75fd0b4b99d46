"""How much an evaluation may cost, so that a file of any size has an answer in bounded time, and omissions are counted.

What was left out is counted in the report like any other row that was left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cotenant.system_clock import steady_ms
from predictor_service.learning.learning_task import LearningTask

ROWS_MAX: Final = 20_000
TIME_LIMIT_S: Final = 7_200
_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """Limits of one evaluation.

    Attributes:
        rows_max: Most rows that are scored, and most that are learned from; at least 2.
        time_limit_s: No split is begun later than this after the start; the first one always is.
    """

    rows_max: int = ROWS_MAX
    time_limit_s: int = TIME_LIMIT_S

    def thin(self, learning_task: LearningTask, seed: int, excluded: Counter[str]) -> LearningTask:
        """Draws rows evenly where there are too many, in their order; every group loses about the same share."""
        beyond = len(learning_task) - self.rows_max
        if beyond <= 0:
            return learning_task
        excluded[f"beyond --rows-max {self.rows_max}, drawn evenly by the seed"] += beyond
        drawn = np.random.default_rng(seed).permutation(len(learning_task))[: self.rows_max]
        return learning_task.subset(np.sort(drawn))

    def start(self) -> Callable[[], bool]:
        """Starts the clock; what is returned reports whether the time is over."""
        deadline_ms = steady_ms() + self.time_limit_s * _MS_PER_S
        return lambda: steady_ms() >= deadline_ms

    def note_unpredicted(self, rows: int, excluded: Counter[str]) -> None:
        """Counts rows whose split was not begun in time."""
        if rows:
            excluded[f"not predicted within --time-limit-s {self.time_limit_s}"] += rows
