"""Ranges of slowdowns on a device whose speed wanders between the time alone and the time together.

A slowdown divides a step together by one alone, which was measured at another time. Campaigns and calibrations measure
both within seconds, so that neither models nor pairs of anchors know of this, and no range that they teach holds it.
How far the speed wanders is what a calibration's windows alone show. It changes what a step computes and not what it
waits, so that it moves a slowdown the more, the more of a step is computed:

    deviation of ln(1 + slowdown) = wander x hypot(share computed alone, share computed together)

A job that waits 14 ms computes a quarter of its step at full speed and half of it at a third, where the same wander
moves its slowdowns twice as far.
"""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import numpy as np

from cotenant.device_calibration import DeviceCalibration
from predictor_service.inference.pair_correction import FloatArray
from predictor_service.inference.records import Level, PairsAnswer


def widen_by_wander(
    answer: PairsAnswer, wait_ratio: FloatArray, calibration: DeviceCalibration | None, confidence: float
) -> PairsAnswer:
    """Return the answer with ranges that hold the wander of the device as well; values stay.

    Pairs that were measured keep theirs: it is that of windows of the pair.

    Args:
        answer: About pairs of jobs on the device.
        wait_ratio: Share of a step alone that each job waits, 0 to 1, shape (jobs,).
        calibration: Of the device; None, one under foreign load, or one without the figure widens nothing.
        confidence: Coverage of the ranges.
    """
    if calibration is None or calibration.foreign_load or not calibration.speed_wander_ratio:
        return answer
    value, lower, upper = (
        np.log1p(matrix.astype(np.float64)) for matrix in (answer.slowdown_ratio, answer.lower, answer.upper)
    )
    alone = 1.0 - wait_ratio[:, None]
    together = 1.0 - wait_ratio[:, None] * np.exp(-value)
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * calibration.speed_wander_ratio * np.hypot(alone, together)
    least = np.maximum(np.expm1(value - np.hypot(value - lower, reach)), 0.0).astype(np.float32)
    most = np.expm1(value + np.hypot(upper - value, reach)).astype(np.float32)
    is_open = answer.level != Level.OBSERVED
    return dataclasses.replace(
        answer,
        lower=np.where(is_open, np.minimum(least, answer.lower), answer.lower),
        upper=np.where(is_open, np.maximum(most, answer.upper), answer.upper),
    )
