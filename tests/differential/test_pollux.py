"""Pollux and its knapsack over counts against trying everything."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.decisions import Start
from scheduler_service.policies.elasticity.count_choice import cheapest_counts
from scheduler_service.policies.pollux import Pollux
from tests.support.scheduling import job, node, pending, prediction, store, view

COSTS = st.dictionaries(st.integers(1, 5), st.floats(0, 100), max_size=4)


@given(others=st.lists(COSTS, max_size=4), gpus=st.integers(0, 8), wait_cost=st.floats(50, 200))
def test_counts_are_the_cheapest_of_all_that_fit(others: list[dict[int, float]], gpus: int, wait_cost: float) -> None:
    costs = [{0: wait_cost, **options} for options in others]
    chosen = cheapest_counts(costs, gpus)
    assert sum(chosen) <= gpus
    every = (
        sum(options[count] for options, count in zip(costs, counts, strict=True))
        for counts in product(*costs)
        if sum(counts) <= gpus
    )
    found = sum(options[count] for options, count in zip(costs, chosen, strict=True))
    assert found == pytest.approx(min(every), abs=1e-9)


def test_of_equal_costs_the_smaller_count_wins() -> None:
    assert cheapest_counts([{0: 1.0, 2: 1.0}], 2) == [0]


def test_counts_that_cannot_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="no count that fits"):
        cheapest_counts([{3: 1.0}], 2)
    with pytest.raises(ValueError, match="pass the GPUs"):
        cheapest_counts([{2: 1.0}, {2: 1.0}], 3)


@settings(deadline=None, max_examples=60)
@given(
    profiles=st.lists(st.lists(st.integers(1, 90), min_size=3, max_size=3), min_size=1, max_size=3),
    gpus=st.integers(1, 4),
    power=st.sampled_from([-2.0, -1.0, 0.0, 1.0]),
)
def test_the_policy_starts_waiting_jobs_with_the_largest_power_mean_of_all_numbers(
    profiles: list[list[int]], gpus: int, power: float
) -> None:
    """On one node, where every choice of numbers can be placed."""
    keys = [f"k{place}" for place in range(len(profiles))]
    steps = {
        key: {(count, 6 // count): float(ms) for count, ms in enumerate(row, 1)}
        for key, row in zip(keys, profiles, strict=True)
    }
    now = view(
        nodes=[node("n0", gpus)],
        waiting=[
            pending(job(key, key=key, gpus=3, allowed_gpus=(1, 2, 3), global_batch_size=6), place)
            for place, key in enumerate(keys)
        ],
        predictions=store([prediction(key, step_ms=of_key) for key, of_key in steps.items()]),
    )
    started = {
        one.job_id: len(one.assignments) for one in Pollux(fairness_power=power).decide(now) if isinstance(one, Start)
    }
    fair = min(-(-gpus // len(keys)), 3)

    def mean(counts: tuple[int, ...]) -> float:
        speedups = [
            (steps[key][fair, 6 // fair] / steps[key][count, 6 // count] if count else 0.0) + 1e-3
            for key, count in zip(keys, counts, strict=True)
        ]
        if power == 0:
            return prod(speedups) ** (1 / len(speedups))
        return float((sum(value**power for value in speedups) / len(speedups)) ** (1 / power))

    possible = [one for one in product(range(min(gpus, 3) + 1), repeat=len(keys)) if sum(one) <= gpus]
    found = mean(tuple(started.get(key, 0) for key in keys))
    assert found == pytest.approx(max(mean(one) for one in possible), rel=1e-9)
