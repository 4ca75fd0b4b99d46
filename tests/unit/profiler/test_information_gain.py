from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from cotenant_profiler.information_gain import NOISE_VARIANCE_RATIO, order_by_information


def posterior_variance(groups: Sequence[tuple[str, ...]], names: str) -> float:
    """Mean variance of the slowdown of every ordered pair after these groups, by the normal equations."""
    precision = np.eye(2 * len(names))
    for group in groups:
        for victim, other in itertools.permutations(group, 2):
            row = np.zeros(2 * len(names))
            row[names.index(victim)] += 1
            row[len(names) + names.index(other)] += 1
            precision += np.outer(row, row) / NOISE_VARIANCE_RATIO
    covariance = np.linalg.inv(precision)
    rows = [(names.index(a), len(names) + names.index(b)) for a, b in itertools.permutations(names, 2)]
    return float(np.mean([covariance[a, a] + covariance[b, b] + 2 * covariance[a, b] for a, b in rows]))


def test_every_group_comes_exactly_once() -> None:
    groups = [*itertools.combinations("abcde", 2), ("a", "b"), ("a", "b", "c")]
    assert sorted(order_by_information(groups)) == list(range(len(groups)))


def test_a_repetition_waits_until_the_others_have_contributed_their_measurements() -> None:
    groups = [("a", "b"), ("a", "b"), ("a", "b"), ("c", "d"), ("a", "c"), ("b", "d")]
    assert order_by_information(groups)[-2:] == [1, 2]


def test_the_first_tenth_of_all_pairs_informs_more_than_the_same_number_in_alphabetical_order() -> None:
    names = "abcdefghijklmnop"
    groups = list(itertools.combinations(names, 2))
    chosen = [groups[index] for index in order_by_information(groups)[:12]]
    assert posterior_variance(chosen, names) < 0.9 * posterior_variance(groups[:12], names)


def test_it_informs_at_least_as_much_as_a_random_order() -> None:
    names = "abcdefghij"
    groups = list(itertools.combinations(names, 2))
    chosen = posterior_variance([groups[index] for index in order_by_information(groups)[:15]], names)
    generator = np.random.default_rng(0)
    others = [
        posterior_variance([groups[index] for index in generator.permutation(len(groups))[:15]], names)
        for _ in range(20)
    ]
    assert chosen <= min(others)
