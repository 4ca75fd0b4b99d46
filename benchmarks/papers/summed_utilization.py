"""How much jobs slow each other down by what they ask of a GPU together, however many they are.

Source:
    Horus (Yeung et al.), section 3.2 and Fig. 4: slowdown over accumulated utilization, linear up to 100 %, quadratic
    above.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedUtilization:
    """Slowdown as a function of the utilization of all jobs on a GPU.

    Attributes:
        linear: Slowdown per utilization, up to 100 %.
        quadratic: Slowdown per square of it, above 100 %; 0 = the line goes on.
    """

    linear: float
    quadratic: float = 0.0

    def slowdown_ratio(self, utilization_ratio: float) -> float:
        """Return the slowdown of each of the jobs whose utilizations have this sum, 1 = 100 %."""
        if utilization_ratio > 1.0 and self.quadratic > 0:
            return self.quadratic * utilization_ratio**2
        return self.linear * utilization_ratio
