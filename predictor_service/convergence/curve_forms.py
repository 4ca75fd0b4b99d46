"""The shapes that a loss curve may have, each fitted for itself.

    optimus       1 / (b0 k + b1) + b2      as the paper fits it: least squares on 1 / (l - b2), search over b2
    reciprocal    a / (1 + k / s) + b       the same curve, fitted in the loss itself
    power         a (1 + k)^-c + b
    exponential   a exp(-k / s) + b

The last three share one fit: for a given shape (s or c) the loss is linear in a and b, so the shape is searched on a
grid and a, b >= 0 follow in closed form. They look at recent points most and start at the steepest epoch, because
plateaus before it and drifts long past reveal little about the rest.

Source: Optimus, section 3.1, Eq. (1), for the first; the project's own measurements for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

POINTS_MIN: Final = 4
OLDEST_WEIGHT: Final = 0.02
"""Weight of the oldest point; the newest has 1, between them it decays evenly."""
_GRID: Final = 200
_TAIL_POINTS_MIN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedForm:
    """One shape, fitted.

    Attributes:
        name: optimus | reciprocal | power | exponential.
        parameters: By name, as in the table above.
        error: Root of the weighted mean square error, in the unit of the losses.
    """

    name: str
    parameters: Mapping[str, float]
    error: float

    def at(self, epochs: float) -> float:
        """The fitted loss after so many epochs since the curve began, 0 or more."""
        return float(_SHAPES[self.name](self.parameters, epochs))


_SHAPES: Final[Mapping[str, Callable[[Mapping[str, float], float], float]]] = {
    "optimus": lambda p, k: 1 / max(p["b0"] * k + p["b1"], 1e-12) + p["b2"],
    "reciprocal": lambda p, k: p["a"] / (1 + k / p["s"]) + p["b"],
    "power": lambda p, k: p["a"] * (1 + k) ** -p["c"] + p["b"],
    "exponential": lambda p, k: p["a"] * float(np.exp(-k / p["s"])) + p["b"],
}


def fit_forms(epochs: FloatArray, losses: FloatArray) -> tuple[FittedForm, ...]:
    """Fits every form.

    Args:
        epochs: Since the curve began, ascending, at least `POINTS_MIN`.
        losses: Between 0 and 1, same shape.
    """
    tail = _from_steepest(losses)
    recent, values = epochs[tail:], losses[tail:]
    span = max(float(epochs[-1]), 1.0)
    scales = np.geomspace(0.01 * span, 100.0 * span, _GRID)
    powers = np.linspace(0.02, 4.0, _GRID)
    return (
        fit_optimus(epochs, losses),
        _fit_shape("reciprocal", "s", scales, 1 / (1 + recent / scales[:, None]), values),
        _fit_shape("power", "c", powers, (1 + recent) ** -powers[:, None], values),
        _fit_shape("exponential", "s", scales, np.exp(-recent / scales[:, None]), values),
    )


def fit_optimus(epochs: FloatArray, losses: FloatArray) -> FittedForm:
    """Fits 1 / (b0 k + b1) + b2 as the paper does: non-negative least squares on 1 / (l - b2), b2 searched.

    Args:
        epochs: Ascending, shape (points,).
        losses: Same shape; b2 lies in [0, smallest loss).
    """
    floors = float(losses.min()) * np.linspace(0.0, 1.0, _GRID, endpoint=False)[:, None]
    inverse = 1 / np.maximum(losses - floors, 1e-9)
    slopes, offsets = _solve_two(epochs[None, :], inverse, np.ones_like(losses))
    fitted = 1 / np.maximum(slopes[:, None] * epochs + offsets[:, None], 1e-12) + floors
    errors = np.sqrt(((fitted - losses) ** 2).mean(axis=1))
    best = int(errors.argmin())
    parameters = {"b0": float(slopes[best]), "b1": float(offsets[best]), "b2": float(floors[best, 0])}
    return FittedForm(name="optimus", parameters=parameters, error=float(errors[best]))


def _fit_shape(name: str, shape_name: str, shapes: FloatArray, basis: FloatArray, losses: FloatArray) -> FittedForm:
    """Fits a * basis + b for every shape, shape (shapes, points), and keeps the best."""
    weights = OLDEST_WEIGHT ** np.linspace(1.0, 0.0, len(losses))
    heights, floors = _solve_two(basis, losses[None, :], weights)
    squares = (heights[:, None] * basis + floors[:, None] - losses) ** 2
    errors = np.sqrt((squares * weights).sum(axis=1) / weights.sum())
    best = int(errors.argmin())
    parameters = {"a": float(heights[best]), shape_name: float(shapes[best]), "b": float(floors[best])}
    return FittedForm(name=name, parameters=parameters, error=float(errors[best]))


def _solve_two(basis: FloatArray, targets: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weighted least squares of target = slope * basis + offset with both >= 0, in every row.

    Where the free solution is negative in one of them, that one is 0 and the other is solved alone; the better of the
    two edges is taken.
    """
    total = weights.sum()
    mean_x, mean_y = (basis @ weights) / total, (targets @ weights) / total
    xx, xy = (basis**2 @ weights) / total, ((basis * targets) @ weights) / total
    variance = np.maximum(xx - mean_x**2, 1e-15)
    slope = (xy - mean_x * mean_y) / variance
    offset = mean_y - slope * mean_x
    no_offset = np.maximum(xy / np.maximum(xx, 1e-15), 0.0)
    flat_gain, steep_gain = mean_y**2, xy**2 / np.maximum(xx, 1e-15)
    negative = (slope < 0) | (offset < 0)
    use_steep = negative & (steep_gain > flat_gain)
    slope = np.where(use_steep, no_offset, np.where(negative, 0.0, slope))
    offset = np.where(use_steep, 0.0, np.where(negative, np.maximum(mean_y, 0.0), offset))
    return slope, np.broadcast_to(offset, slope.shape)


def _from_steepest(losses: FloatArray) -> int:
    """Index of the point where the loss falls fastest, 0 when too few would be left."""
    steepest = int(np.argmax(-np.diff(losses)))
    return steepest if len(losses) - steepest >= _TAIL_POINTS_MIN else 0
