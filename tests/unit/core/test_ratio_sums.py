"""Sums of ratios that people can check with a pencil."""

from __future__ import annotations

from itertools import permutations
from math import nan

import pytest

from scheduler_service.core.predictions.ratio_sums import exceeds, rounded_sum


@pytest.mark.parametrize(
    ("ratios", "total"), [((0.7, 0.2, 0.1), 1.0), ((0.2, 0.1, 0.9), 1.2), ((0.1,) * 10, 1.0), ((1 / 3,) * 3, 1.0)]
)
def test_a_sum_is_what_a_pencil_says_in_every_order(ratios: tuple[float, ...], total: float) -> None:
    assert {rounded_sum(order) for order in permutations(ratios[:5])} == {rounded_sum(ratios[:5])}
    assert rounded_sum(ratios) == total
    assert not exceeds(rounded_sum(ratios), total)


def test_a_limit_that_is_a_sum_itself_may_be_reached_and_not_passed() -> None:
    assert not exceeds(rounded_sum([0.1, 0.2]), 0.1 + 0.2)
    assert not exceeds(rounded_sum([0.3333333336]), 0.3333333336)
    assert exceeds(rounded_sum([0.7, 0.301]), 1.0)
    assert not exceeds(rounded_sum([nan]), 1.0)
