"""Which method learns which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from predictor_service.learning.plain_method import PlainMethod
from predictor_service.learning.problem import Method
from predictor_service.learning.slowdown_method import SlowdownMethod

MethodBuilder = Callable[[str], Method]
"""From what will be unseen (one of `problem.LEVELS`) to a method."""

METHODS: Final[Mapping[str, MethodBuilder]] = {
    "utilization": PlainMethod,
    "sm_activity": PlainMethod,
    "memory": PlainMethod,
    "step_time": PlainMethod,
    "slowdown": SlowdownMethod,
}
"""By target."""
