"""Which method learns which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from predictor_service.learning.problem import Method
from predictor_service.learning.slowdown_method import SlowdownMethod
from predictor_service.learning.solo_method import SoloMethod

MethodBuilder = Callable[[str], Method]
"""From what will be unseen (one of `problem.LEVELS`) to a method."""

METHODS: Final[Mapping[str, MethodBuilder]] = {
    "utilization": SoloMethod,
    "sm_activity": SoloMethod,
    "memory": SoloMethod,
    "step_time": SoloMethod,
    "slowdown": SlowdownMethod,
}
"""By target."""
