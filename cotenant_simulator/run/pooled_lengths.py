"""What jobs that wait together tell of each other: how much of a long stated length is error, and how much the job.

A stated length is the true one times an error, so the longest ones are rather overstated and the shortest understated,
and a queue takes less time than its stated lengths in sum. The logarithms of true lengths are taken for normal around
a line over the logarithm of the number of GPUs; the line and the spread around it follow from the stated lengths
themselves, whose spread is that of the true ones and of the errors together. Each length is then pulled towards the
line by the share of the errors in that spread. How little a short queue tells of line and spread is drawn too: few jobs
are hardly pulled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from random import Random
from statistics import fmean

_SPARE_JOBS = 2
"""So many more lengths than coefficients are needed, or nothing is known of the spread."""


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


def corrections_of(stated: Mapping[str, StatedLength], random: Random | None) -> Mapping[str, Correction]:
    """Return what each of some lengths is corrected by; nothing where they are too few.

    Args:
        stated: By name; equal predictions only once, for their error is the same one.
        random: Draws line and spread; None = the likeliest ones.
    """
    lengths = list(stated.values())
    logs, widths = [log(one.length_ms) for one in lengths], _centred([log(one.gpus) for one in lengths])
    sum_of_squares = sum(width**2 for width in widths)
    spare = len(lengths) - (2 if sum_of_squares else 1)
    if spare < _SPARE_JOBS:
        return {}
    middle = fmean(logs)
    slope = sum(width * one for width, one in zip(widths, logs, strict=True)) / (sum_of_squares or 1.0)
    left = sum((one - middle - slope * width) ** 2 for width, one in zip(widths, logs, strict=True))
    error = fmean(one.sigma**2 for one in lengths)
    spread = max(left / (spare if random is None else random.gammavariate(spare / 2, 2.0)), error)
    if random is not None:
        middle += random.gauss(0.0, sqrt(spread / len(lengths)))
        slope += random.gauss(0.0, sqrt(spread / sum_of_squares)) if sum_of_squares else 0.0
    true = spread - error
    found: dict[str, Correction] = {}
    for name, one, length, width in zip(stated, lengths, logs, widths, strict=True):
        kept_ratio = true / (true + one.sigma**2) if one.sigma else 1.0
        shift = (middle + slope * width - length) * (1.0 - kept_ratio)
        found[name] = Correction(shift=shift, sigma=one.sigma * sqrt(kept_ratio))
    return found


def _centred(values: Sequence[float]) -> Sequence[float]:
    """Return by how much each is above the mean; exactly 0 where all are equal."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = fmean(values)
    return [value - mean for value in values]
