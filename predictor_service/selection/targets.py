"""What is predicted, under which names, and the scale in which it is learned.

Where there is an analytical estimate of a target, it is learned relative to it, so that a model
that has learned nothing answers the estimate instead of a mean:

    step_ms, memory_bytes                 ln(measured / estimate)
    utilization_ratio, sm_activity_ratio  measured / ceiling, the ceiling being the share of a step not spent waiting
    slowdown_ratio                        ln((1 + measured) / (1 + estimate)), the estimate being fair time slicing

Elsewhere what spans orders of magnitude is learned as a logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.graphs.operator_families import OperatorFamily
from predictor_service.features.pair_features import PAIR_COLUMNS
from predictor_service.regressors.interface import FloatArray

SLOWDOWN_LOWEST: Final = -0.5
"""Measured slowdowns below this (a job twice as fast when co-located) are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A predicted quantity.

    Attributes:
        name: Name with its unit: in stored versions, on the wire, in metrics.
        quantity: The word of command lines and reports.
        unit: Of measured values.
        scale: log_ratio | share | log_one_plus.
        columns: Features that its models see, by name.
        bound_columns: Features that the 99 % bound of familiar networks sees, by name; () = the same. What libraries
            take beyond what is counted depends on operators that say little of the usual job.
    """

    name: str
    quantity: str
    unit: str
    scale: str
    columns: tuple[str, ...]
    bound_columns: tuple[str, ...] = ()

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

    def compress(self, values: FloatArray) -> FloatArray:
        """From measured values to the scale in which they are learned without an estimate; same shape."""
        if self.scale == "log_ratio":
            return np.asarray(np.log(np.maximum(values, _SIZE_MIN)))
        return np.asarray(np.log1p(np.maximum(values, -_LOSS_MAX))) if self.scale == "log_one_plus" else values

    def expand(self, values: FloatArray) -> FloatArray:
        """Back to the target's unit, within its possible range; same shape."""
        if self.scale == "share":
            return np.asarray(np.clip(values, 0.0, 1.0))
        bounded = np.clip(values, -_EXPONENT_MAX, _EXPONENT_MAX)
        return np.asarray(np.exp(bounded) if self.scale == "log_ratio" else np.expm1(bounded))

    def relative_to(self, measured: FloatArray) -> FloatArray:
        """What an error is divided by; for a slowdown the shared time, not the slowdown, which may be zero."""
        return measured + 1.0 if self.scale == "log_one_plus" else measured


_LOG_BOUND: Final = 12.0
_EXPONENT_MAX: Final = 50.0
_SIZE_MIN: Final = 1e-9
_LOSS_MAX: Final = 0.9
"""Of a slowdown below 0 no more than this is accepted."""

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
_MEMORY_BOUND_COLUMNS: Final = (
    *_MEMORY_COLUMNS,
    "log_unfolded_bytes",
    "unfolded_memory_ratio",
    *(f"log_{family.value}_nodes" for family in OperatorFamily),
)

UTILIZATION: Final = Target(
    name="utilization_ratio", quantity="utilization", unit="ratio", scale="share", columns=_WORK_COLUMNS
)
SM_ACTIVITY: Final = Target(
    name="sm_activity_ratio", quantity="sm_activity", unit="ratio", scale="share", columns=_WORK_COLUMNS
)
MEMORY: Final = Target(
    name="memory_bytes",
    quantity="memory",
    unit="bytes",
    scale="log_ratio",
    columns=_MEMORY_COLUMNS,
    bound_columns=_MEMORY_BOUND_COLUMNS,
)
STEP: Final = Target(name="step_ms", quantity="step_time", unit="ms", scale="log_ratio", columns=_WORK_COLUMNS)
SLOWDOWN: Final = Target(
    name="slowdown_ratio", quantity="slowdown", unit="ratio", scale="log_one_plus", columns=PAIR_COLUMNS
)
SOLO_TARGETS: Final = (UTILIZATION, SM_ACTIVITY, MEMORY, STEP)
TARGETS: Final = (*SOLO_TARGETS, SLOWDOWN)
TARGETS_BY_NAME: Final[Mapping[str, Target]] = {target.name: target for target in TARGETS}
TARGETS_BY_QUANTITY: Final[Mapping[str, Target]] = {target.quantity: target for target in TARGETS}
