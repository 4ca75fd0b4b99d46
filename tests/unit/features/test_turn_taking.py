"""Three or more jobs that take turns on one device: limits that are known, and a queue that is simulated."""

from __future__ import annotations

import heapq
import itertools
import random

import numpy as np
import pytest

from predictor_service.features.pair_features import SoloFigures, fair_share_slowdowns
from predictor_service.features.time_slicing import (
    COLOCATED_JOBS_MAX,
    compose_time_slices,
    exceed_sum,
    slow_by_fair_time_slices,
)


def test_two_jobs_suffer_as_the_pair_model_anchors_them() -> None:
    shares = np.array([0.3, 0.8])
    figures = SoloFigures(
        utilization_ratio=shares, step_ms=np.ones(2), memory_bytes=np.ones(2), input_wait_ratio=np.zeros(2)
    )
    anchor = fair_share_slowdowns(figures, np.array([0, 1]), np.array([1, 0]))
    assert slow_by_fair_time_slices(shares) == pytest.approx(anchor)


@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_jobs_that_compute_all_the_time_get_one_share_each(jobs: int) -> None:
    assert slow_by_fair_time_slices(np.ones(jobs)) == pytest.approx(np.full(jobs, jobs - 1.0))


def test_measured_pairs_of_jobs_that_compute_all_the_time_add_up() -> None:
    slowdowns = np.array([[0.0, 1.2, 0.9], [1.1, 0.0, 1.3], [0.8, 1.4, 0.0]])
    assert compose_time_slices(np.ones(3), slowdowns) == pytest.approx(slowdowns.sum(axis=1))


def test_three_or_more_jobs_that_wait_suffer_more_than_the_sum_of_their_pairs_and_less_than_full_shares() -> None:
    shares = np.array([0.5, 0.5, 0.5])
    slowdown = slow_by_fair_time_slices(shares)[0]
    assert 2 * 0.25 < slowdown < 2 * 0.5


def test_fair_turns_are_those_of_a_simulated_queue() -> None:
    shares = (0.4, 0.7, 0.9)
    measured = _simulate(shares, cycles=40_000, seed=1)
    assert slow_by_fair_time_slices(np.array(shares)) == pytest.approx(measured, rel=0.05)


def test_nothing_exceeds_the_sum_for_two_jobs_nor_for_jobs_that_compute_all_the_time() -> None:
    assert exceed_sum(np.array([0.3, 0.8])) == pytest.approx(np.zeros(2))
    assert exceed_sum(np.ones(4)) == pytest.approx(np.zeros(4))


def test_turns_of_jobs_that_wait_exceed_the_sum_of_their_pairs() -> None:
    assert (exceed_sum(np.array([0.4, 0.7, 0.9])) > 0.02).all()


def test_more_jobs_than_can_be_computed_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        slow_by_fair_time_slices(np.ones(COLOCATED_JOBS_MAX + 1))


def _simulate(shares: tuple[float, ...], cycles: int, seed: int) -> list[float]:
    """Slowdowns of jobs that alternate between random thinking and random work on a device shared evenly."""
    generator = random.Random(seed)
    now, done = 0.0, [0] * len(shares)
    left: dict[int, float] = {}
    thinking = [(generator.expovariate(1.0) * (1.0 - share), job) for job, share in enumerate(shares)]
    heapq.heapify(thinking)
    for _ in itertools.count():
        first = min(left, key=lambda job: left[job]) if left else -1
        ends = now + left[first] * len(left) if left else float("inf")
        arrives = thinking[0][0] if thinking else float("inf")
        passed = min(ends, arrives) - now
        for job in left:
            left[job] -= passed / len(left)
        now += passed
        if ends <= arrives:
            del left[first]
            done[first] += 1
            heapq.heappush(thinking, (now + generator.expovariate(1.0) * (1.0 - shares[first]), first))
            if sum(done) >= cycles:
                break
        else:
            _, job = heapq.heappop(thinking)
            left[job] = generator.expovariate(1.0) * shares[job]
    return [now / count - 1.0 for count in done]
