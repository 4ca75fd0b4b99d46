"""Which method learns which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from predictor_service.learning.learning_task import Method
from predictor_service.learning.missing_graphs import WithAndWithoutGraphs
from predictor_service.learning.slowdown_method import SlowdownMethod
from predictor_service.learning.solo_method import SoloMethod

MethodBuilder = Callable[[str], Method]
"""From what will be unseen (one of `learning_task.LEVELS`) to a method."""


def _solo(level: str) -> Method:
    return WithAndWithoutGraphs(SoloMethod(level))


def _slowdown(level: str) -> Method:
    return WithAndWithoutGraphs(SlowdownMethod(level))


METHODS: Final[Mapping[str, MethodBuilder]] = {
    "utilization": _solo,
    "sm_activity": _solo,
    "memory": _solo,
    "step_time": _solo,
    "slowdown": _slowdown,
}
"""By target."""
