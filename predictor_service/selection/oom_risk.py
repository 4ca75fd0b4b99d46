"""How likely a set of jobs runs out of a device's memory together.

Every job's memory is its prediction times the exponential of a residual of held-out groups. The sum
is convolved as if the errors of different jobs were independent. They are not where jobs are alike, since a family errs
in one direction, so a second figure needs no independence: each job gets a share of the device in proportion to its
prediction, and the chances that any leaves its share add up (the union bound). The actual risk lies between the two
wherever errors are not opposed; a placement that must not fail asks for the second.

Residuals beyond the largest one are not impossible: one part in (groups + 1) of every job's chance lies at the largest
residual times the safety factor of the bounds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.conformal import SAFETY_FACTOR, ConformalBounds

JOBS_MAX: Final = 64
_CELL_BYTES: Final = 8 << 20
_CELLS_MAX: Final = 1 << 16


class MemoryEstimate(NamedTuple):
    """The distribution of one job's memory; a tuple, because every answer about a job that does not fit makes one.

    Attributes:
        value_bytes: The prediction, above 0.
        bounds: Residuals ln(measured / predicted) of held-out rows, in units of `spread`.
        spread: How far errors of this job spread relative to those of others, above 0.
        lowest_bytes: It is not less, because so much was seen.
    """

    value_bytes: float
    bounds: ConformalBounds
    spread: float = 1.0
    lowest_bytes: float = 0.0

    @property
    def expected_bytes(self) -> float:
        """The prediction, or what was seen where that is more."""
        return max(self.value_bytes, self.lowest_bytes)

    def at_least(self, memory_bytes: float) -> MemoryEstimate:
        """Returns the distribution given that the job was seen to take so much."""
        return self._replace(lowest_bytes=memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OomRisk:
    """Chance that the sum exceeds the device, 0 to 1.

    Attributes:
        independent: If errors of different jobs have nothing to do with each other.
        union_bound: At most this, however errors hang together.
    """

    independent: float
    union_bound: float


def estimate_oom_risk(jobs: Sequence[MemoryEstimate], device_memory_bytes: float) -> OomRisk:
    """Estimates the risk of a set of jobs; another job, a larger one or a smaller device never lowers it.

    Args:
        jobs: At most `JOBS_MAX`; none = no risk.
        device_memory_bytes: What they share, above 0.

    Raises:
        ValueError: More jobs, or a size that is not above 0 and finite.
    """
    sizes = [device_memory_bytes, *(job.expected_bytes for job in jobs)]
    if len(jobs) > JOBS_MAX or not all(math.isfinite(size) and size > 0 for size in sizes):
        raise ValueError(f"{len(jobs)} jobs (at most {JOBS_MAX}) of sizes {sizes}, all above 0 and finite")
    if not jobs:
        return OomRisk(independent=0.0, union_bound=0.0)
    if len(jobs) == 1:
        alone = estimate_chance_above(jobs[0], device_memory_bytes)
        return OomRisk(independent=alone, union_bound=alone)
    cells = int(min(device_memory_bytes // _CELL_BYTES, _CELLS_MAX))
    cell_bytes = device_memory_bytes / cells if cells == _CELLS_MAX else float(_CELL_BYTES)
    fits = np.zeros(cells + 1)
    fits[0] = 1.0
    for job in jobs:
        fits = _add(fits, job, cell_bytes)
    total = sum(job.expected_bytes for job in jobs)
    escapes = sum(estimate_chance_above(job, device_memory_bytes * job.expected_bytes / total) for job in jobs)
    independent = min(1.0, max(0.0, 1.0 - float(fits.sum())))
    return OomRisk(independent=independent, union_bound=min(1.0, max(independent, escapes)))


def _outcomes(job: MemoryEstimate) -> tuple[FloatArray, FloatArray]:
    """Possible sizes in bytes, and their chances."""
    residuals = np.array(job.bounds.residuals)
    beyond = 1.0 / (job.bounds.groups + 1)
    largest = float(residuals[-1]) * SAFETY_FACTOR if residuals[-1] > 0 else float(residuals[-1])
    chances = np.full(len(residuals), (1.0 - beyond) / len(residuals))
    sizes = job.value_bytes * np.exp(job.spread * np.append(residuals, largest))
    return np.maximum(sizes, job.lowest_bytes), np.append(chances, beyond)


def _add(fits: FloatArray, job: MemoryEstimate, cell_bytes: float) -> FloatArray:
    """Chances of each sum that still fits, with one job more; sizes are rounded up to whole cells."""
    sizes, chances = _outcomes(job)
    steps = np.ceil(sizes / cell_bytes)
    within = steps < len(fits)
    added = np.zeros_like(fits)
    chance_of_step = np.bincount(steps[within].astype(np.intp), weights=chances[within])
    for step in np.flatnonzero(chance_of_step):
        added[step:] += chance_of_step[step] * fits[: len(fits) - step]
    return added


def estimate_chance_above(job: MemoryEstimate, limit_bytes: float) -> float:
    """Chance that one job alone takes more, counted by bisection: this is asked for every job that does not fit.

    Args:
        job: Its value is above 0 and finite.
        limit_bytes: Above 0 and finite.
    """
    if job.lowest_bytes > limit_bytes:
        return 1.0
    residuals, margin = job.bounds.residuals, math.log(limit_bytes / job.value_bytes) / job.spread
    beyond = 1.0 / (job.bounds.groups + 1)
    above = len(residuals) - bisect_right(residuals, margin)
    largest = residuals[-1] * SAFETY_FACTOR if residuals[-1] > 0 else residuals[-1]
    return above * (1.0 - beyond) / len(residuals) + (beyond if largest > margin else 0.0)
