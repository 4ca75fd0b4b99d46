"""Which method learns which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from predictor_service.learning.missing_graphs import WithAndWithoutGraphs
from predictor_service.learning.problem import Method
from predictor_service.learning.slowdown_method import SlowdownMethod
from predictor_service.learning.solo_method import SoloMethod
from predictor_service.selection.targets import SLOWDOWN, SOLO_TARGETS

MethodBuilder = Callable[[str], Method]
"""From what will be unseen (one of `problem.LEVELS`) to a method."""


def _solo(level: str) -> Method:
    return WithAndWithoutGraphs(SoloMethod(level))


def _slowdown(level: str) -> Method:
    return WithAndWithoutGraphs(SlowdownMethod(level))


METHODS: Final[Mapping[str, MethodBuilder]] = {
    **{target.name: _solo for target in SOLO_TARGETS},
    SLOWDOWN.name: _slowdown,
}
"""By target."""
