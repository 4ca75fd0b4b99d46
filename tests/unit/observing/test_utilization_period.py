"""The period of a job's utilization: found where there is one, and never where there is none."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from cotenant_agent.observing.utilization_period import find_period
from tests.support.cases import for_each

SAMPLES = 600


def steps_of(period: float, *, busy_share: float, seed: int = 0, spread: float = 0.03) -> list[float]:
    """Return how busy each stretch is of a job that computes for a part of each step, read to a fifth."""
    generator = random.Random(seed)
    busy = [0.0] * SAMPLES
    at = 0.0
    while at < SAMPLES:
        length = period * (1 + generator.gauss(0, spread))
        end = min(at + busy_share * length, SAMPLES)
        for index in range(int(at), math.ceil(end)):
            busy[index] += min(index + 1, end) - max(index, at)
        at += length
    return [round((share + generator.gauss(0, 0.05)) * 5) / 5 for share in busy]


def noise(seed: int) -> Iterator[float]:
    generator = random.Random(seed)
    for _ in range(SAMPLES):
        yield generator.random()


def drift(seed: int) -> Iterator[float]:
    generator, value = random.Random(seed), 0.5
    for _ in range(SAMPLES):
        value = min(1.0, max(0.0, value + generator.gauss(0, 0.05)))
        yield value


@for_each("period", [10.0, 14.3, 20.0, 33.7, 60.0])
def test_a_period_is_found_within_two_percent(period: float) -> None:
    for busy_share in (0.2, 0.5, 0.8):
        assert find_period(steps_of(period, busy_share=busy_share)) == pytest.approx(period, rel=0.02)


@for_each("period", [1.2, 1.5, 1.9, 2.1, 2.6, 3.0, 3.4, 5.0, 7.0])
def test_steps_too_short_for_the_samples_are_no_longer_period(period: float) -> None:
    for busy_share in (0.2, 0.5, 0.8):
        assert find_period(steps_of(period, busy_share=busy_share)) is None


def test_what_is_random_or_drifts_or_stands_still_has_no_period() -> None:
    assert [find_period([*noise(seed)]) for seed in range(20)] == [None] * 20
    assert [find_period([*drift(seed)]) for seed in range(20)] == [None] * 20
    assert [find_period([level] * SAMPLES) for level in (0.0, 0.5, 1.0)] == [None] * 3


def test_a_period_that_changed_half_way_is_none() -> None:
    changed = steps_of(20, busy_share=0.5)[:300] + steps_of(30, busy_share=0.5)[:300]
    assert find_period(changed) is None


def test_a_few_samples_tell_nothing() -> None:
    assert find_period([]) is None
    assert find_period([1.0, 0.0] * 20) is None
