"""Utilization of a job on a device type of which nothing was measured here: expected, and a range.

A device waits while the host launches kernels and prepares input. How much of a step that is depends mostly on how long
the step keeps the device busy at its peaks; host and libraries change little beside that:

    logit(utilization / share of a step not spent waiting) = level + slope x ln(busy milliseconds)

`python -m benchmarks.uncalibrated_utilization` learns level and slope from public rows of four campaigns, each of which
weighs the same, and judges them with a campaign left out; the range is made of the errors on the campaign left out. Two
cards, fp32, training: how often the range holds on the device that is asked about was not checked, so that answers
carry `range_not_calibrated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from predictor_service.features.analytical_memory import ACTIVATION_SCALE
from predictor_service.features.devices import DeviceType

_TRAINING_PASSES: Final = 3.0
"""A backward pass costs about two forward passes."""
_BUSY_MS_MIN: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationLaw:
    """What public rows teach.

    Attributes:
        level: Logit of the utilization of a step of one busy millisecond.
        slope: What a factor of e in busy time adds to it; at least 0.
        below: How far below the expected logit one row of twenty of an unseen campaign is.
        above: The same above.
    """

    level: float
    slope: float
    below: float
    above: float

    def logit(self, busy_ms: float) -> float:
        """Expected logit of the utilization of a step that waits for no input."""
        return self.level + self.slope * math.log(max(busy_ms, _BUSY_MS_MIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class UncalibratedUtilization:
    """Utilization of one job, 0 to 1; lower <= expected <= upper."""

    expected_ratio: float
    lower_ratio: float
    upper_ratio: float


def busy_ms(
    forward_flops: float,
    traffic_bytes: float,
    device: DeviceType,
    precision: str,
    *,
    training: bool,
    optimizer_ms: float,
) -> float:
    """Time that a step would keep a device busy at its peaks, milliseconds.

    Args:
        forward_flops: Operations of the forward pass of the whole batch.
        traffic_bytes: Read and written by it in 32 bits.
        device: Gives the peaks.
        precision: Of the activations.
        training: Whether there is a backward pass.
        optimizer_ms: Of the update of the weights; most of the step where an embedding is all of the network.
    """
    passes = _TRAINING_PASSES if training else 1.0
    traffic_s = ACTIVATION_SCALE.get(precision, 1.0) * traffic_bytes / device.memory_bytes_per_s
    return 1e3 * passes * (forward_flops / device.peak(precision) + traffic_s) + optimizer_ms


def estimate_utilization(busy: float, ceiling_ratio: float) -> UncalibratedUtilization:
    """Estimates the utilization of a job where its device type was not measured.

    Args:
        busy: See `busy_ms`.
        ceiling_ratio: Share of a step not spent waiting for input, 0 to 1.
    """
    middle = LAW.logit(busy)
    lower, expected, upper = (
        ceiling_ratio / (1.0 + math.exp(-logit)) for logit in (middle - LAW.below, middle, middle + LAW.above)
    )
    return UncalibratedUtilization(expected_ratio=expected, lower_ratio=lower, upper_ratio=upper)


LAW: Final = UtilizationLaw(level=-0.42, slope=0.50, below=0.87, above=2.55)
