"""What jobs that were not measured yet tell of each other: how much of a stated length is error, and how much the job.

A stated length is the true one times an error, so the longest ones are rather overstated and the shortest understated,
and a queue takes less time than its stated lengths in sum. The logarithms of true lengths are taken for normal around
a line over the logarithm of the number of GPUs; the line and the spread around it follow from the stated lengths
themselves, whose spread is that of the true ones and of the errors together. Each length is then pulled towards the
line by the share of the errors in that spread. How little a short queue tells of line and spread is drawn too: few jobs
are hardly pulled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from random import Random
from typing import TypeAlias

_SPARE_JOBS = 2
"""So many more lengths than coefficients are needed, or nothing is known of the spread."""
_LEAST_VARIANCE = 1e-6
"""Of the logarithm of an error: a length is not known to better than a thousandth."""
_STEPS_MAX = 30
_SETTLED_RATIO = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLength:
    """How long a job is said to run alone.

    Attributes:
        length_ms: Above 0.
        sigma: Standard deviation of the logarithm of the error.
        gpus: That it takes.
    """

    length_ms: float
    sigma: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What the logarithm of true over stated length is expected to be.

    Attributes:
        shift: Its mean; below 0 = shorter than stated.
        sigma: Its standard deviation.
    """

    shift: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A weighted regression of the lengths' logarithms over those of their widths.

    Attributes:
        centre: Where the two coefficients err independently.
        height: There.
        slope: Per unit of width.
        height_sigma: Standard deviation of the height's error.
        slope_sigma: The same of the slope; 0 = all widths are equal.
    """

    centre: float
    height: float
    slope: float
    height_sigma: float
    slope_sigma: float

    def at(self, width: float) -> float:
        """Return the expected logarithm of a length."""
        return self.height + self.slope * (width - self.centre)

    def drawn(self, random: Random) -> _Line:
        """Return a line that could be the true one."""
        return replace(
            self,
            height=self.height + random.gauss(0.0, self.height_sigma),
            slope=self.slope + random.gauss(0.0, self.slope_sigma),
        )


def corrections_of(stated: Mapping[str, StatedLength], random: Random | None) -> Mapping[str, Correction]:
    """Return what each of some lengths is corrected by; nothing where they are too few.

    Args:
        stated: By name; equal predictions only once, for their error is the same one.
        random: Draws line and spread; None = the likeliest ones.
    """
    lengths = list(stated.values())
    spare = len(lengths) - (2 if len({one.gpus for one in lengths}) > 1 else 1)
    if spare < _SPARE_JOBS:
        return {}
    points = [(log(one.gpus), log(one.length_ms), max(one.sigma**2, _LEAST_VARIANCE)) for one in lengths]
    variance, line = _fitted(points, spare if random is None else random.gammavariate(spare / 2, 2.0))
    line = line if random is None else line.drawn(random)
    found: dict[str, Correction] = {}
    for name, (width, length, error) in zip(stated, points, strict=True):
        kept_ratio = variance / (variance + error)
        shift = (line.at(width) - length) * (1.0 - kept_ratio)
        found[name] = Correction(shift=shift, sigma=sqrt(error * kept_ratio))
    return found


_Point: TypeAlias = tuple[float, float, float]
"""Logarithm of the GPUs, of the length, and the variance of its error."""


def _fitted(points: Sequence[_Point], squares: float) -> tuple[float, _Line]:
    """Return the variance of the true lengths around the line, and the line.

    Args:
        points: The stated lengths.
        squares: What their squared distances, each over its own variance, sum up to if both are right.
    """
    line = _line(points, variance=1.0)
    distances = sum((length - line.at(width)) ** 2 for width, length, _ in points)
    # No more than the root, which is reached from here at once where all errors are equally large.
    variance = max(distances / squares - max(error for *_, error in points), 0.0)
    for _ in range(_STEPS_MAX):
        line = _line(points, variance=variance)
        ratios = [((length - line.at(width)) ** 2, variance + error) for width, length, error in points]
        more = sum(distance / expected for distance, expected in ratios) - squares
        step = more / sum(distance / expected**2 for distance, expected in ratios) if more > 0 else 0.0
        variance += step
        if step <= _SETTLED_RATIO * variance:
            break
    return variance, line


def _line(points: Sequence[_Point], *, variance: float) -> _Line:
    weights = [1.0 / (variance + error) for *_, error in points]
    total = sum(weights)
    centre = sum(weight * width for weight, (width, *_) in zip(weights, points, strict=True)) / total
    height = sum(weight * length for weight, (_, length, _) in zip(weights, points, strict=True)) / total
    breadth = sum(weight * (width - centre) ** 2 for weight, (width, *_) in zip(weights, points, strict=True))
    if len({width for width, *_ in points}) < 2:
        return _Line(centre=centre, height=height, slope=0.0, height_sigma=total**-0.5, slope_sigma=0.0)
    rise = sum(weight * (width - centre) * length for weight, (width, length, _) in zip(weights, points, strict=True))
    return _Line(
        centre=centre, height=height, slope=rise / breadth, height_sigma=total**-0.5, slope_sigma=breadth**-0.5
    )
