"""Slowdowns on a device type without a trained model: hedged at first, then whatever the measured pairs show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

import numpy as np

from cotenant.device_sharing import DeviceSharing
from predictor_service.features.pair_features import SoloFigures, excess_slowdowns, fair_share_slowdowns
from predictor_service.inference.observed_pairs import NOISE, Observation
from predictor_service.inference.pair_posterior import FloatArray, IndexArray, learn_posterior
from predictor_service.inference.records import Level, PairsAnswer

START_SHARE: Final = 0.35
"""Of what two jobs want beyond the whole device. Before any window a world where jobs hardly disturb each other looks
like one where they take turns. Of our own pairs as measured and with a fifth of each ln(1 + slowdown) this share has
the least worst error over that of expecting no slowdown (`benchmarks.interference_online` prints it; Alnair's pairs,
which did not choose it, judge it)."""
_UPPER_FACTOR: Final = 2.0
"""Until a pair was measured upper ends reach at least twice what fair turns would cost."""
_DEVIATION: Final = 0.35
"""Usual error of the start, of ln(1 + slowdown): a factor of 1.4 either way."""
_LOG_MAX: Final = math.log(1_000.0)


def start_pairs(jobs: SoloFigures, victim: IndexArray, other: IndexArray, sharing: DeviceSharing) -> FloatArray:
    """Return what is expected of pairs before any was measured.

    Where jobs are known to take turns, fair turns are about the least that they cost: our own pairs and those of an
    H200 lost more (docs/interference.md). Else they may disturb each other hardly at all.

    Args:
        jobs: Figures of all jobs.
        victim: Index of the job whose slowdown is wanted, shape (pairs,).
        other: Index of the co-located job, shape (pairs,).
        sharing: How they share the device, as far as it is said.

    Returns:
        Ratios from 0 to 1, shape (pairs,).
    """
    if sharing is DeviceSharing.TIME_SLICING:
        return fair_share_slowdowns(jobs, victim, other)
    return START_SHARE * excess_slowdowns(jobs, victim, other)


def expect_pairs(
    answer: PairsAnswer, trend: FloatArray, confidence: float, measured: Mapping[tuple[int, int], Observation]
) -> None:
    """Replaces an answer's start by what is expected after what was measured; bounds are those of the next window.

    Args:
        answer: With the start as its slowdowns; changed in place.
        trend: Slowdowns by fair turns, shape (jobs, jobs).
        confidence: Of the intervals.
        measured: By index of victim and other job.
    """
    deviations = NormalDist().inv_cdf(0.5 + confidence / 2)
    start = np.log1p(answer.slowdown_ratio.astype(np.float64))
    posterior = learn_posterior(start, np.log1p(trend), _DEVIATION**2, measured)
    windows = {pair: measured[pair].variance for pair in posterior.measured}
    noise = np.full(start.shape, float(np.mean(list(windows.values()))) if windows else NOISE**2)
    for pair, variance in windows.items():
        noise[pair] = variance
    reach = deviations * np.sqrt(posterior.deviation**2 + noise)
    lower, upper = posterior.mean - reach, posterior.mean + reach
    if not posterior.measured:
        upper = np.maximum(upper, np.log1p(_UPPER_FACTOR * trend))
    unmeasured = np.ones(start.shape, dtype=bool)
    unmeasured[tuple(np.array(posterior.measured, dtype=np.intp).reshape(-1, 2).T)] = False
    # What is below 0 is nothing but the noise of a window.
    lower[unmeasured] = np.maximum(lower, -deviations * np.sqrt(noise))[unmeasured]
    value = np.clip(posterior.mean, 0.0, _LOG_MAX)
    answer.slowdown_ratio[:] = np.expm1(value)
    answer.lower[:] = np.expm1(np.minimum(lower, value))
    answer.upper[:] = np.expm1(np.clip(upper, value, _LOG_MAX))

    for pair in posterior.measured:
        answer.level[pair], answer.in_domain[pair] = Level.OBSERVED, True
        answer.times_measured[pair] = measured[pair].times
