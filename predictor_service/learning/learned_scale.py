"""The scale in which a target is learned where no physics anchors it: logarithms of what spans orders of magnitude."""

from __future__ import annotations

from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray

SLOWDOWN_LOWEST: Final = -0.9
_EXPONENT_MAX: Final = 50.0


def to_learned_scale(target: str, values: FloatArray) -> FloatArray:
    """From the target's unit; same shape."""
    if target in ("memory", "step_time"):
        return np.asarray(np.log(np.maximum(values, 1e-9)))
    return np.asarray(np.log1p(np.maximum(values, SLOWDOWN_LOWEST))) if target == "slowdown" else values


def from_learned_scale(target: str, values: FloatArray) -> FloatArray:
    """Back to the target's unit, within its possible range; same shape."""
    bounded = np.clip(values, -_EXPONENT_MAX, _EXPONENT_MAX)
    if target in ("memory", "step_time"):
        return np.asarray(np.exp(bounded))
    return np.asarray(np.expm1(bounded)) if target == "slowdown" else np.asarray(np.clip(values, 0.0, 1.0))
