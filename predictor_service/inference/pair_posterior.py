"""Slowdowns of a device type without a trained model, learned online: a prior, its scale and its spread.

What the prior of ln(1 + slowdown) misses is taken as normal, the sum of parts of the device, of a trend, of the victim,
of the other job and of the pair alone. The trend is in proportion to what fair turns would cost, so that light
interference shrinks all predictions and heavy interference raises all of them after a few windows. How large the
misses are, and which parts they are made of, is not known beforehand: a few mixtures times a few sizes are weighed by
how likely they make what was measured, and all that count are averaged.

The standard deviations are checked on the measured pairs themselves, each predicted as if neither of its directions had
been measured, and widened until the intervals hold there; few pairs widen them further, as Student's t does.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.11, 2.23-2.24, 5.8 and
section 5.4.2; Hoeting, Madigan, Raftery and Volinsky, "Bayesian model averaging", Statistical Science 14 (1999).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor_service.inference.observed_pairs import Observation
from predictor_service.selection.conformal import few_groups_factor

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

MEASURED_MAX: Final = 400
"""The work grows with the third power; of more, those with the largest counts are used."""
WEIGHED_MAX: Final = 120
"""Of these, how many weigh the mixtures and check the spread."""
_MEMBERS_MAX: Final = 4
_SIZES: Final = tuple(4.0**power for power in range(-4, 4))
_SIZE_SPREAD: Final = 2.8
"""Standard deviation of the logarithm of the size: a factor of 16 either way is not unlikely."""
_COVERAGE: Final = 0.9
_PRIOR_GROUPS: Final = 2
"""Measured pairs that the prior is worth."""


class Mixture(NamedTuple):
    """Variances of the parts, in units of the size.

    Attributes:
        device: Of all pairs alike.
        trend: Of the factor of fair turns.
        job: Of a victim, and of another job.
        pair: Of one pair alone.
        floor: Of one pair alone, whatever fair turns cost it.
        is_scaled: Whether the parts of jobs and pairs are in proportion to fair turns too.
    """

    device: float
    trend: float
    job: float
    pair: float
    floor: float
    is_scaled: bool


MIXTURES: Final = (
    Mixture(device=0.1, trend=1.0, job=0.1, pair=0.1, floor=0.0, is_scaled=False),
    Mixture(device=0.1, trend=1.0, job=0.5, pair=0.5, floor=0.02, is_scaled=True),
    Mixture(device=0.3, trend=0.3, job=0.3, pair=0.1, floor=0.0, is_scaled=False),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """What is expected of every pair after what was measured, shape (jobs, jobs), victim by other.

    Attributes:
        mean: Of ln(1 + slowdown).
        deviation: Standard deviation of what a pair really is about it, without the noise of a window.
        measured: The pairs that were used.
    """

    mean: FloatArray
    deviation: FloatArray
    measured: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Measured pairs as arrays, each of shape (measured,)."""

    victim: IndexArray
    other: IndexArray
    trend: FloatArray
    missed: FloatArray
    noise: FloatArray

    def first(self, count: int) -> _Rows:
        names = ("victim", "other", "trend", "missed", "noise")
        return _Rows(**{name: getattr(self, name)[:count] for name in names})


def learn_posterior(
    prior: FloatArray, trend: FloatArray, size: float, observed: Mapping[tuple[int, int], Observation]
) -> Posterior:
    """Computes what is expected.

    Args:
        prior: Of ln(1 + slowdown), shape (jobs, jobs).
        trend: What fair turns would cost, in the same scale and shape.
        size: Usual variance of what the prior misses, in the same scale, above 0.
        observed: By index of victim and other job.
    """
    chosen = sorted(observed, key=lambda pair: (-observed[pair].count, pair))[:MEASURED_MAX]
    if not chosen:
        spread = np.mean([_own_variance(mixture, trend) for mixture in MIXTURES], axis=0)
        return Posterior(mean=prior, deviation=np.sqrt(size * spread), measured=())
    rows = _read_rows(prior, trend, chosen, observed)
    weighed = _weigh(rows.first(WEIGHED_MAX), size)
    share = np.array([weight for weight, _, _ in weighed]) / sum(weight for weight, _, _ in weighed)
    parts = [_condition(mixture, scale, trend, rows) for _, mixture, scale in weighed]
    shift = sum(weight * mean for weight, (mean, _) in zip(share, parts, strict=True))
    second = sum(weight * (variance + mean**2) for weight, (mean, variance) in zip(share, parts, strict=True))
    _, mixture, scale = weighed[0]
    widening = _widening(mixture, scale, rows.first(WEIGHED_MAX))
    variance = np.maximum(np.asarray(second) - np.asarray(shift) ** 2, 0.0)
    return Posterior(mean=prior + shift, deviation=widening * np.sqrt(variance), measured=chosen)


def _read_rows(
    prior: FloatArray,
    trend: FloatArray,
    chosen: Sequence[tuple[int, int]],
    observed: Mapping[tuple[int, int], Observation],
) -> _Rows:
    victim, other = (np.array([pair[side] for pair in chosen], dtype=np.intp) for side in (0, 1))
    return _Rows(
        victim=victim,
        other=other,
        trend=trend[victim, other],
        missed=np.array([observed[pair].mean for pair in chosen]) - prior[victim, other],
        noise=np.array([observed[pair].mean_variance for pair in chosen]),
    )


def _weigh(rows: _Rows, size: float) -> list[tuple[float, Mixture, float]]:
    """The mixtures and sizes that count, with their weights, the heaviest first."""
    found = []
    for mixture in MIXTURES:
        shape = _covariance(mixture, rows)
        for factor in _SIZES:
            root = np.linalg.cholesky(size * factor * shape + np.diag(rows.noise))
            white = np.linalg.solve(root, rows.missed)
            likelihood = -0.5 * float(white @ white) - float(np.log(np.diag(root)).sum())
            found.append((likelihood - 0.5 * (math.log(factor) / _SIZE_SPREAD) ** 2, mixture, size * factor))
    found.sort(key=lambda each: -each[0])
    return [(math.exp(each[0] - found[0][0]), each[1], each[2]) for each in found[:_MEMBERS_MAX]]


def _reach(mixture: Mixture, trend: FloatArray) -> FloatArray:
    """By how much the parts of jobs and pairs count."""
    return trend if mixture.is_scaled else np.ones_like(trend)


def _pair_variance(mixture: Mixture, trend: FloatArray) -> FloatArray:
    return mixture.pair * _reach(mixture, trend) ** 2 + mixture.floor


def _own_variance(mixture: Mixture, trend: FloatArray) -> FloatArray:
    """Of all parts of each pair together."""
    jobs = 2.0 * mixture.job * _reach(mixture, trend) ** 2
    return mixture.device + mixture.trend * trend**2 + jobs + _pair_variance(mixture, trend)


def _covariance(mixture: Mixture, rows: _Rows) -> FloatArray:
    """Of the measured pairs, in units of the size, without noise."""
    reach = _reach(mixture, rows.trend)
    shared = (rows.victim[:, None] == rows.victim).astype(np.float64) + (rows.other[:, None] == rows.other)
    jobs = mixture.job * shared * np.outer(reach, reach)
    alike = mixture.device + mixture.trend * np.outer(rows.trend, rows.trend) + jobs
    return np.asarray(alike + np.diag(_pair_variance(mixture, rows.trend)))


def _condition(mixture: Mixture, scale: float, trend: FloatArray, rows: _Rows) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of what the prior misses of every pair, each of shape (jobs, jobs)."""
    jobs = len(trend)
    mean, covariance = _effects(mixture, scale, rows, jobs)
    reach = _reach(mixture, trend)
    of_victim, of_other = slice(2, 2 + jobs), slice(2 + jobs, None)
    by_jobs = mean[of_victim][:, None] + mean[of_other][None, :]
    expected = mean[0] + trend * mean[1] + reach * by_jobs
    own = np.diag(covariance)
    both = own[of_victim][:, None] + own[of_other][None, :] + 2.0 * covariance[of_victim, of_other]
    with_device = covariance[0, of_victim][:, None] + covariance[0, of_other][None, :]
    with_trend = covariance[1, of_victim][:, None] + covariance[1, of_other][None, :]
    variance = own[0] + 2.0 * trend * covariance[0, 1] + trend**2 * own[1]
    variance += reach**2 * both + 2.0 * reach * (with_device + trend * with_trend)
    at = rows.victim, rows.other
    alone = scale * _pair_variance(mixture, trend)
    kept = alone[at] / (alone[at] + rows.noise)
    seen = (1.0 - kept) * expected[at] + kept * rows.missed, (1.0 - kept) ** 2 * variance[at] + kept * rows.noise
    variance += alone
    expected[at], variance[at] = seen
    return expected, np.maximum(variance, 0.0)


def _effects(mixture: Mixture, scale: float, rows: _Rows, jobs: int) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of the effects of device and trend, then of every victim, then of every other job."""
    reach = _reach(mixture, rows.trend)
    number = np.arange(len(rows.victim))
    columns = np.zeros((len(number), 2 + 2 * jobs))
    columns[:, 0], columns[:, 1] = 1.0, rows.trend
    columns[number, 2 + rows.victim] = reach
    columns[number, 2 + jobs + rows.other] = reach
    prior = scale * np.concatenate([[mixture.device, mixture.trend], np.full(2 * jobs, mixture.job)])
    used = np.flatnonzero(columns.any(axis=0))
    seen = columns[:, used] * np.sqrt(prior[used])
    weight = 1.0 / (scale * _pair_variance(mixture, rows.trend) + rows.noise)
    inner = np.linalg.inv(np.eye(len(used)) + (seen * weight[:, None]).T @ seen)
    mean, covariance = np.zeros(len(prior)), np.diag(prior)
    size = np.sqrt(prior[used])
    mean[used] = size * (inner @ (seen.T @ (weight * rows.missed)))
    covariance[np.ix_(used, used)] = inner * np.outer(size, size)
    return mean, covariance


def _widening(mixture: Mixture, scale: float, rows: _Rows) -> float:
    """Factor of the deviations, at least 1, with which the measured pairs would have been in their intervals."""
    inverse = np.linalg.inv(scale * _covariance(mixture, rows) + np.diag(rows.noise))
    weights = inverse @ rows.missed
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, pair in enumerate(zip(rows.victim.tolist(), rows.other.tolist(), strict=True)):
        places[min(pair), max(pair)].append(place)
    scores = []
    for group in places.values():
        left_out = np.linalg.inv(inverse[np.ix_(group, group)])
        scores += list(np.abs(left_out @ weights[group]) / np.sqrt(np.diag(left_out)))
    level = min(1.0, _COVERAGE * (1.0 + 1.0 / len(scores)))
    needed = float(np.quantile(scores, level, method="higher")) / NormalDist().inv_cdf(0.5 + _COVERAGE / 2)
    return max(needed, 1.0) * few_groups_factor(len(places) + _PRIOR_GROUPS, _COVERAGE)
