"""Slowdowns of an untrained device type: the scale and the spread of the prior are learned from the measured pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor_service.inference.observed_pairs import NOISE, Observation
from predictor_service.inference.pair_posterior import FloatArray, learn_posterior
from tests.support.cases import for_each

_SIZE = 0.35**2
_JOBS = 12
_DEVIATIONS = 1.6449
_START = np.full((_JOBS, _JOBS), math.log1p(0.25))
_TREND = np.full((_JOBS, _JOBS), math.log1p(0.5))


def _campaign(scale: float, seed: int) -> FloatArray:
    """ln(1 + slowdown) of all pairs: a share of the trend, times what is each victim's and each other job's own."""
    random = np.random.default_rng(seed)
    victim, other = np.exp(random.normal(0.0, 0.4, (2, _JOBS)))
    return np.asarray(scale * _TREND * victim[:, None] * other * np.exp(random.normal(0.0, 0.2, (_JOBS, _JOBS))))


def _windows(truth: FloatArray, count: int, seed: int) -> dict[tuple[int, int], Observation]:
    """Both directions of pairs in a drawn order, each with the noise of one window."""
    random = np.random.default_rng(seed)
    pairs = [(one, two) for one in range(_JOBS) for two in range(one)]
    drawn = [pair for place in random.permutation(len(pairs)) for pair in (pairs[place], pairs[place][::-1])]
    return {
        pair: Observation(count=1.0, mean=float(truth[pair] + 0.05 * random.standard_normal()))
        for pair in drawn[:count]
    }


@for_each(("scale", "least"), [(0.1, "light"), (2.0, "heavy")])
@for_each("count", [10, 30, 100])
def test_intervals_of_pairs_that_were_not_measured_hold_in_light_and_heavy_campaigns(
    scale: float, least: str, count: int
) -> None:
    inside, errors, nobody = [], [], []
    for seed in range(12):
        truth = _campaign(scale, seed)
        observed = _windows(truth, count, seed)
        expected = learn_posterior(_START, _TREND, _SIZE, observed)
        rest = np.ones_like(truth, dtype=bool)
        rest[tuple(np.array(list(observed)).T)] = False
        missed = np.abs(expected.mean - truth)[rest]
        inside.append(missed <= _DEVIATIONS * expected.deviation[rest])
        errors.append(missed.mean())
        nobody.append(np.abs(truth)[rest].mean())
    assert np.concatenate(inside).mean() >= 0.87, least
    assert np.mean(errors) < np.mean(nobody), least


def test_ten_windows_without_slowdown_shrink_every_prediction_towards_none() -> None:
    observed = _windows(np.zeros((_JOBS, _JOBS)), 10, seed=3)
    expected = learn_posterior(_START, _TREND, _SIZE, observed)
    assert np.abs(expected.mean).max() < 0.35 * _START[0, 0]
    assert expected.deviation.max() < 0.15 < learn_posterior(_START, _TREND, _SIZE, {}).deviation.max()


def test_light_windows_of_busy_jobs_shrink_busy_pairs_more_than_idle_ones() -> None:
    demand = np.linspace(0.1, 1.0, _JOBS)
    fair = np.outer(demand, demand)
    truth = 0.2 * np.log1p(fair)
    expected = learn_posterior(np.log1p(0.5 * fair), np.log1p(fair), _SIZE, _windows(truth, 20, seed=1))
    assert np.abs(expected.mean - truth).mean() < 0.03
    assert expected.mean[-1, -1] > expected.mean[0, 0]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), jobs=st.integers(1, 6))
def test_whatever_was_measured_gives_finite_values_and_measured_pairs_are_as_certain_as_their_windows(
    data: st.DataObject, jobs: int
) -> None:
    cells = [(victim, other) for victim in range(jobs) for other in range(jobs)]
    chosen = data.draw(st.lists(st.sampled_from(cells), min_size=1, unique=True))
    observed = {
        cell: Observation(count=data.draw(st.floats(1.0, 20.0)), mean=data.draw(st.floats(-0.69, 6.9)))
        for cell in chosen
    }
    trend = np.full((jobs, jobs), data.draw(st.sampled_from([0.0, 1e-9, 0.2, math.log(2.0)])))
    expected = learn_posterior(0.5 * trend, trend, _SIZE, observed)
    assert np.isfinite(expected.mean).all()
    assert np.isfinite(expected.deviation).all()
    assert (expected.deviation >= 0).all()
    assert sorted(expected.measured) == sorted(chosen)


def test_many_windows_settle_a_pair_at_what_was_measured() -> None:
    expected = learn_posterior(_START, _TREND, _SIZE, {(0, 1): Observation(count=20.0, mean=1.0, times=20)})
    assert expected.mean[0, 1] == pytest.approx(1.0, abs=0.02)
    assert expected.mean[0, 2] > _START[0, 2]
    assert expected.deviation[0, 1] < NOISE
