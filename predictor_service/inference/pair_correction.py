"""Predictions of pairs corrected by what was measured of some of them.

What a prediction of ln(1 + slowdown) misses is taken as the sum of four parts: one of the whole device, one of the
victim, one of the other job, one of the pair alone, each with a quarter of the variance that the prediction's own
interval promises, or of what the measured pairs show where that is more. Measured pairs then correct, in one linear
step, themselves most, pairs with one of their jobs less, and all others least. A pair measured often ends at what was
measured; one measured once is shrunk to its prediction.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.23 and 2.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor_service.inference.observed_pairs import Observation

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

MEASURED_MAX: Final = 400
"""The work grows with the third power; of more, those with the largest counts are used."""
_PARTS: Final = 4
_PRIOR_VARIANCE_MIN: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction:
    """What to add to predictions of ln(1 + slowdown).

    Attributes:
        shift: Of every pair, shape (jobs, jobs).
        victim: Index of each measured pair's victim, shape (measured,).
        other: Index of each measured pair's other job, shape (measured,).
        deviation: Standard deviation of what is left of each measured pair, shape (measured,).
        left: Least standard deviation of what is left of every pair that was not measured: its own part, and those of
            its jobs that were not measured in their place, shape (jobs, jobs).
    """

    shift: FloatArray
    victim: IndexArray
    other: IndexArray
    deviation: FloatArray
    left: FloatArray


def correct_pairs(
    predicted: FloatArray, prior_variance: float, observed: Mapping[tuple[int, int], Observation]
) -> Correction:
    """Computes the correction.

    Args:
        predicted: Predictions of ln(1 + slowdown), victim by other, shape (jobs, jobs).
        prior_variance: Of the predictions' errors in that scale.
        observed: By index of victim and other job.
    """
    chosen = sorted(sorted(observed, key=lambda pair: (-observed[pair].count, pair))[:MEASURED_MAX])
    victim, other = (np.array([pair[side] for pair in chosen], dtype=np.intp) for side in (0, 1))
    if not chosen:
        nothing = np.zeros_like(predicted)
        return Correction(shift=nothing, victim=victim, other=other, deviation=np.zeros(0), left=nothing)
    noise = np.array([observed[pair].mean_variance for pair in chosen])
    missed = np.array([observed[pair].mean for pair in chosen]) - predicted[victim, other]
    part = max(prior_variance, float(np.mean(missed**2)), _PRIOR_VARIANCE_MIN) / _PARTS
    same_victim, same_other = victim[:, None] == victim[None, :], other[:, None] == other[None, :]
    covariance = part * (1.0 + same_victim + same_other + (same_victim & same_other))
    inverse = np.linalg.inv(covariance + np.diag(noise))
    weights = part * (inverse @ missed)
    jobs = len(predicted)
    of_victim, of_other = np.bincount(victim, weights, jobs), np.bincount(other, weights, jobs)
    shift = weights.sum() + of_victim[:, None] + of_other[None, :]
    shift[victim, other] += weights
    variance = np.diag(covariance) - np.sum(covariance @ inverse * covariance, axis=1)  # it is symmetric
    return Correction(
        shift=shift,
        victim=victim,
        other=other,
        deviation=np.sqrt(np.maximum(variance, 0.0)),
        left=np.sqrt(part * _parts_unseen(victim, other, jobs)),
    )


def _parts_unseen(victim: IndexArray, other: IndexArray, jobs: int) -> FloatArray:
    """How many of the four parts of each pair no measured pair has, its own taken for one of them."""
    as_victim, as_other = np.bincount(victim, minlength=jobs) == 0, np.bincount(other, minlength=jobs) == 0
    return np.asarray(1.0 + as_victim[:, None] + as_other[None, :])
