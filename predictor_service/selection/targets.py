"""What is predicted, and the scale in which it is learned.

Every target is learned relative to what physics says of it (the anchor), so that a model that knows nothing answers
the physics instead of a mean:

    step_ms, memory_bytes                 ln(measured / anchor)
    utilization_ratio, sm_activity_ratio  measured / ceiling, the ceiling being the share of a step not spent waiting
    slowdown_ratio                        ln((1 + measured) / (1 + anchor)), the anchor being fair time slicing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.pair_features import PAIR_COLUMNS
from predictor_service.regressors.interface import FloatArray

SLOWDOWN_LOWEST: Final = -0.5
"""Measured slowdowns below this (a job twice as fast beside another one) are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A predicted quantity.

    Attributes:
        name: Name with its unit.
        scale: log_ratio | share | log_one_plus.
        columns: Features that its models see, by name.
    """

    name: str
    scale: str
    columns: tuple[str, ...]

    def encode(self, measured: FloatArray, analytical_estimate: FloatArray) -> FloatArray:
        """From measured values to the model's own scale; same shapes."""
        if self.scale == "log_ratio":
            return np.asarray(np.log(measured / analytical_estimate))
        if self.scale == "share":
            return np.asarray(measured / analytical_estimate)
        return np.asarray(np.log1p(np.maximum(measured, SLOWDOWN_LOWEST)) - np.log1p(analytical_estimate))

    def decode(self, value: FloatArray, analytical_estimate: FloatArray) -> FloatArray:
        """From the model's own scale to the quantity, within its possible range; same shapes."""
        if self.scale == "log_ratio":
            return np.asarray(np.exp(np.minimum(np.maximum(value, -_LOG_BOUND), _LOG_BOUND)) * analytical_estimate)
        if self.scale == "share":
            return np.asarray(np.minimum(np.maximum(value, 0.0), 1.0 / analytical_estimate) * analytical_estimate)
        return np.asarray(np.maximum(np.expm1(np.minimum(value, _LOG_BOUND) + np.log1p(analytical_estimate)), 0.0))


_LOG_BOUND: Final = 12.0

_WORK_COLUMNS: Final = (
    "log_batch", "log_flops", "log_flops_per_node", "log_intensity", "log_nodes", "log_parameters",
    "log_activation_bytes", "log_widest_activation_bytes", "log_roofline_ms", "compute_bound_ratio",
    "convolution_time_ratio", "depthwise_convolution_time_ratio", "matrix_multiply_time_ratio", "recurrent_time_ratio",
    "attention_time_ratio", "normalization_time_ratio", "elementwise_time_ratio", "movement_time_ratio",
    "optimizer_slots", "is_training", "input_wait_ratio",
)  # fmt: skip
_MEMORY_COLUMNS: Final = (
    "log_batch", "log_memory_bytes", "activation_memory_ratio", "log_parameters", "log_activation_bytes",
    "log_widest_activation_bytes", "log_input_bytes", "log_nodes", "convolution_work_ratio",
    "matrix_multiply_work_ratio", "recurrent_work_ratio", "normalization_work_ratio", "optimizer_slots", "is_training",
)  # fmt: skip

UTILIZATION: Final = Target(name="utilization_ratio", scale="share", columns=_WORK_COLUMNS)
SM_ACTIVITY: Final = Target(name="sm_activity_ratio", scale="share", columns=_WORK_COLUMNS)
MEMORY: Final = Target(name="memory_bytes", scale="log_ratio", columns=_MEMORY_COLUMNS)
STEP: Final = Target(name="step_ms", scale="log_ratio", columns=_WORK_COLUMNS)
SLOWDOWN: Final = Target(name="slowdown_ratio", scale="log_one_plus", columns=PAIR_COLUMNS)
SOLO_TARGETS: Final = (UTILIZATION, SM_ACTIVITY, MEMORY, STEP)
