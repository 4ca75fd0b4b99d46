"""Ranges of slowdowns on a device whose speed wanders hold what is measured there, and only grow with the wander."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor_service.inference.records import Level, PairsAnswer
from predictor_service.inference.speed_wander import widen_by_wander
from tests.support.calibrations import calibration

CONFIDENCE = 0.9
DRAWS = 20_000


Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


def answer_of(ranges: list[tuple[float, float, float]], level: Level = Level.GRAPH) -> PairsAnswer:
    """As many pairs as fill a square, each by value and how far below and above it the range reaches."""
    size = int(len(ranges) ** 0.5)
    value, below, above = (np.array(each[: size * size]) for each in zip(*ranges, strict=True))
    shape = (size, size)
    return PairsAnswer(
        prediction_id="",
        model_version="",
        job_ids=[str(place) for place in range(size)],
        slowdown_ratio=value.astype(np.float32).reshape(shape),
        lower=np.maximum(value - below, 0.0).astype(np.float32).reshape(shape),
        upper=(value + above).astype(np.float32).reshape(shape),
        level=np.full(shape, level, dtype=np.int32),
        in_domain=np.ones(shape, dtype=bool),
        times_measured=np.zeros(shape, dtype=np.int32),
    )


def widened(answer: PairsAnswer, wait_ratio: list[float], wander: float) -> PairsAnswer:
    found = replace(calibration(), speed_wander_ratio=wander)
    return widen_by_wander(answer, np.array(wait_ratio), found, CONFIDENCE)


RANGES = st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 2.0), st.floats(0.0, 2.0))


@given(
    ranges=st.lists(RANGES, min_size=4, max_size=9),
    waits=st.lists(st.floats(0.0, 0.99), min_size=3, max_size=3),
    wanders=st.lists(st.floats(0.0, 0.5), min_size=2, max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_more_wander_narrows_no_range_and_moves_no_value(
    ranges: list[tuple[float, float, float]], waits: list[float], wanders: list[float]
) -> None:
    plain = answer_of(ranges)
    found = [widened(plain, waits[: len(plain.job_ids)], wander) for wander in (0.0, *sorted(wanders))]
    assert found[0] is plain, "a calibration without the figure answers as before"
    for less, more in itertools.pairwise(found):
        assert np.all(more.lower <= less.lower)
        assert np.all(less.upper <= more.upper)
        assert np.array_equal(more.slowdown_ratio, plain.slowdown_ratio)
        assert np.all(more.lower >= 0.0)


@pytest.mark.parametrize("deviation", [0.0, 0.06])
@pytest.mark.parametrize("wander", [0.03, 0.08])
@pytest.mark.parametrize(("wait_ms", "computing_ms"), [(14.0, 5.0), (14.0, 10.0), (0.0, 30.0)])
def test_nine_in_ten_slowdowns_are_held_that_differ_only_by_the_speed_alone_and_together(
    wander: float, wait_ms: float, computing_ms: float, deviation: float
) -> None:
    """A step waits as long at any speed; what it computes takes longer at one time than at the other.

    Beside that a prediction may be off, by what its range held before.
    """
    draw = np.random.default_rng(1)
    slowdown_ratio, alone_ms = 0.6, wait_ms + computing_ms
    lost_ms = slowdown_ratio * alone_ms
    speeds = np.exp(wander * draw.standard_normal((2, DRAWS)))
    measured = (wait_ms + (computing_ms + lost_ms) * speeds[0]) / (wait_ms + computing_ms * speeds[1]) - 1
    measured = np.exp(np.log1p(measured) + deviation * draw.standard_normal(DRAWS)) - 1
    least, most = ((1 + slowdown_ratio) * np.exp(sign * Z * deviation) - 1 for sign in (-1, 1))
    plain = answer_of([(slowdown_ratio, slowdown_ratio - least, most - slowdown_ratio)])
    found = widened(plain, [wait_ms / alone_ms], wander)
    held = (found.lower[0, 0] <= measured) & (measured <= found.upper[0, 0])
    assert held.mean() == pytest.approx(CONFIDENCE, abs=0.015)


def test_what_a_job_computes_more_of_its_step_reaches_further_whoever_else_is_there() -> None:
    exact = answer_of([(0.6, 0.0, 0.0)] * 4)
    upper = widened(exact, [0.75, 0.5], 0.08).upper
    assert np.all(upper[0] < upper[1])
    assert np.array_equal(upper[:, 0], upper[:, 1])


def test_the_range_of_a_measured_pair_is_that_of_its_own_windows() -> None:
    seen = answer_of([(0.6, 0.2, 0.2)] * 4, Level.OBSERVED)
    found = widened(seen, [0.0, 0.0], 0.2)
    assert np.array_equal(found.lower, seen.lower)
    assert np.array_equal(found.upper, seen.upper)


def test_under_foreign_load_nothing_is_said_of_the_device_itself() -> None:
    plain = answer_of([(0.6, 0.2, 0.2)])
    loud = replace(calibration(), speed_wander_ratio=0.2, foreign_load=True)
    assert widen_by_wander(plain, np.zeros(1), loud, CONFIDENCE) is plain
    assert widen_by_wander(plain, np.zeros(1), None, CONFIDENCE) is plain
