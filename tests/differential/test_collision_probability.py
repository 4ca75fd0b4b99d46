"""Eq. 4 of the OJPP paper against its meaning: the sum over all states with two surges or more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.jobs.opportunistic_sharing import collision_probability
from tests.support.packing import collision_by_enumeration

probabilities = st.lists(st.floats(0, 1), max_size=9)


@given(probabilities)
def test_the_collision_probability_is_the_sum_over_all_states(chances: list[float]) -> None:
    assert collision_probability(chances) == pytest.approx(collision_by_enumeration(chances), rel=1e-9, abs=1e-12)


@given(probabilities, st.floats(0, 1))
def test_one_more_worker_never_makes_a_collision_less_likely(chances: list[float], more: float) -> None:
    assert collision_probability([*chances, more]) >= collision_probability(chances) - 1e-12


@given(st.permutations([0.1, 0.35, 0.5, 0.9]))
def test_the_order_of_the_workers_does_not_matter(chances: list[float]) -> None:
    assert collision_probability(chances) == pytest.approx(collision_probability([0.1, 0.35, 0.5, 0.9]))


def test_tiny_probabilities_keep_their_digits() -> None:
    """1 - (1 - p)^2 - 2 p (1 - p) is 0 in floating point for p = 1e-9; two surges at once have p^2."""
    assert collision_probability([1e-9, 1e-9]) == pytest.approx(1e-18, rel=1e-6)
