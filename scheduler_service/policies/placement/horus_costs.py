"""What a GPU costs a job under Horus: the memory in use, and the slowdown expected at the summed utilization.

Source:
    Horus (Yeung et al.), Eq. 7-10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_ROUNDING: Final = 1e-9
"""Far more than what rounding makes of two equal costs."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Expected slowdown over summed utilization (1 = 100 %): coefficients by rising power."""

    linear: tuple[float, float]
    quadratic: tuple[float, float, float]

    @classmethod
    def of(cls, *, linear: Sequence[float], quadratic: Sequence[float]) -> Curve:
        """Build a curve from two and three numbers.

        Raises:
            ValueError: There are more or fewer.
        """
        (low_0, low_1), (high_0, high_1, high_2) = linear, quadratic
        return cls((float(low_0), float(low_1)), (float(high_0), float(high_1), float(high_2)))

    def slowdown_ratio(self, utilization_ratio: float) -> float:
        """Return f- up to 100 %, f+ above (Eq. 9)."""
        if utilization_ratio <= 1.0:
            return self.linear[0] + self.linear[1] * utilization_ratio
        c0, c1, c2 = self.quadratic
        return c0 + c1 * utilization_ratio + c2 * utilization_ratio**2

    def rises_to(self, utilization_ratio: float) -> bool:
        """Say whether it falls nowhere up to some utilization."""
        _, c1, c2 = self.quadratic
        slopes = [c1 + 2 * c2 * ratio for ratio in (1.0, utilization_ratio)]
        is_continued = utilization_ratio <= 1.0 or (min(slopes) >= 0 and sum(self.quadratic) >= sum(self.linear))
        return self.linear[1] >= 0 and is_continued


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Weights, limits and fitted curves; see the parameters of `Horus`.

    Attributes:
        curve_pairs: Measured pairs that a device's curve is fitted to, where it is.
    """

    weight_memory: float
    weight_utilization: float
    max_jobs_per_gpu: int
    memory_max_ratio: float
    utilization_max_ratio: float
    locality_gpus: int
    curves: Mapping[str, Curve]
    default_curve: Curve
    curve_pairs: Mapping[str, int] = field(default_factory=dict)

    def is_dearer_than_empty(self, *, memory_ratio: float, device: str) -> bool:
        """Say whether GPUs with so much memory in use cost any job more than empty ones of the device type."""
        curve = self.curves.get(device, self.default_curve)
        return self.weight_memory * memory_ratio > _ROUNDING and curve.rises_to(self.utilization_max_ratio)

    def cost(self, *, memory_ratio: float, utilization_ratio: float, device: str) -> float:
        """Return the cost of a GPU's final load (Eq. 7).

        Args:
            memory_ratio: Memory in use with the job over the GPU's memory (Eq. 8).
            utilization_ratio: Summed utilization with the job, 1 = 100 % (Eq. 10).
            device: Device type, for its fitted curve.
        """
        curve = self.curves.get(device, self.default_curve)
        return self.weight_memory * memory_ratio + self.weight_utilization * curve.slowdown_ratio(utilization_ratio)
