"""What networks that ran on several devices take beyond what physics and their kind explain, whatever the device.

The time of the same network on another card, scaled, is hard to beat: kernels that a network needs and no sum of its
operators shows are slow on all of them. It is used as far as a network has been measured: shrunk where few devices ran
it, and fading within a small distance from it, so that a stranger has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from predictor_service.features.graphs.affine import FloatArray

REACH: Final = 0.15
"""Distance in standardised traits at which a network is about three fifths the one that was measured."""
_FEWEST: Final = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownNetworks:
    """The networks.

    Attributes:
        points: Standardised traits, see `step_correction`, shape (networks, traits).
        logs: Logarithms of their times over what is expected of their kind, shape (networks,).
    """

    points: FloatArray
    logs: FloatArray

    def log_ratio(self, points: FloatArray) -> FloatArray:
        """What the nearest network adds to each row, shape (rows,); a row is the same among any others."""
        return np.array([weight * self.logs[place] if weight else 0.0 for weight, place in map(self._nearest, points)])

    def to_json(self) -> dict[str, object]:
        """As stored."""
        return {
            "points": [[round(float(value), 3) for value in row] for row in self.points],
            "logs": [round(float(value), 4) for value in self.logs],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Sequence[object]]) -> KnownNetworks:
        """Reads what `to_json` wrote."""
        points, logs = (np.array(stored[name], dtype=np.float64) for name in ("points", "logs"))
        if len(points) != len(logs) or (len(points) and points.ndim != 2):
            raise ValueError("networks and their times are not as many")
        return cls(points=points, logs=logs)

    def _nearest(self, point: FloatArray) -> tuple[float, int]:
        """Weight and place of the nearest network."""
        if not len(self.logs):
            return 0.0, 0
        squares = self._squares - 2.0 * (self.points * point).sum(axis=1)
        place = int(squares.argmin())
        apart = float(((self.points[place] - point) ** 2).sum())
        weight = float(np.exp(-apart / (2 * REACH**2)))
        return (weight if weight > _FEWEST else 0.0), place

    @cached_property
    def _squares(self) -> FloatArray:
        return np.asarray((self.points**2).sum(axis=1), dtype=np.float64)


NO_NETWORKS: Final = KnownNetworks(points=np.zeros((0, 0)), logs=np.zeros(0))
