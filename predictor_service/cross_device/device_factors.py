"""What a few measured networks say of one device: how fast its host is, and how fast it is as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.affine import FloatArray

HOST_DEVIATION: Final = 0.4
"""How far hosts are from each other, as a logarithm."""
SHARED_DEVIATION: Final = 0.35
"""How far devices are from their coefficients, as a logarithm."""
ANCHOR_DEVIATION: Final = 0.3
"""How far networks of one device are from each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFactors:
    """Deviations of one device, as logarithms.

    Attributes:
        host_log: Of the host's time for one operator.
        shared_log: Of every step.
        anchors: Networks that were measured; 0 = nothing is known of the device.
    """

    host_log: float = 0.0
    shared_log: float = 0.0
    anchors: int = 0


UNCALIBRATED: Final = DeviceFactors()


def improve_factors(factors: DeviceFactors, log_errors: FloatArray, host_sensitivity: FloatArray) -> DeviceFactors:
    """One step towards the most likely deviations.

    Args:
        factors: Where the errors were taken.
        log_errors: Logarithms of measured over expected, shape (anchors,).
        host_sensitivity: Derivatives of the expected logarithms by `host_log`, shape (anchors,).
    """
    slopes = np.column_stack([host_sensitivity, np.ones(len(log_errors))]) / ANCHOR_DEVIATION
    now = np.array([factors.host_log, factors.shared_log])
    precision = np.diag([HOST_DEVIATION**-2, SHARED_DEVIATION**-2])
    target = slopes.T @ (log_errors / ANCHOR_DEVIATION) - precision @ now
    host_log, shared_log = now + np.linalg.solve(slopes.T @ slopes + precision, target)
    return DeviceFactors(host_log=float(host_log), shared_log=float(shared_log), anchors=len(log_errors))
