"""The knapsack over counts against trying everything."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.policies.count_choice import cheapest_counts

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
