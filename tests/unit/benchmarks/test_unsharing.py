"""What is said to be left of un-sharing: no arrangement of the same jobs has more of them alone."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, combinations_with_replacement, product

import pytest

from benchmarks.unsharing import alone_at_most

GPUS = 4


def most_alone(widths: tuple[int, ...]) -> int:
    """Try every arrangement with two jobs at most on each GPU; -1 = there is none."""
    best = -1
    for places in product(*(tuple(combinations(range(GPUS), width)) for width in widths)):
        crowd = Counter(gpu for place in places for gpu in place)
        if max(crowd.values()) <= 2:
            best = max(best, sum(all(crowd[gpu] == 1 for gpu in place) for place in places))
    return best


@pytest.mark.parametrize("jobs", [1, 2, 3, 4])
def test_the_bound_is_not_passed_by_any_arrangement_and_mostly_met(jobs: int) -> None:
    found = [
        (alone_at_most(widths, GPUS), most)
        for widths in combinations_with_replacement(range(1, GPUS + 1), jobs)
        if (most := most_alone(widths)) >= 0
    ]
    assert all(bound >= most for bound, most in found)
    assert sum(bound == most for bound, most in found) > len(found) / 2


def test_what_does_not_fit_twice_leaves_nobody_alone() -> None:
    assert [alone_at_most((4, 4), GPUS), alone_at_most((2, 2), GPUS), alone_at_most((3, 2, 1), GPUS)] == [0, 2, 1]
