"""Which pairs judge the ranges that a service states, and how they are counted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.interference_online import World
from benchmarks.served_pairs import Answers, judged_pairs, score, split_families


def test_every_family_is_left_out_once() -> None:
    families = [f"family_{place % 9}" for place in range(30)]
    parts = split_families(families)
    assert sorted(name for part in parts for name in part) == sorted(set(families))


def test_pairs_of_known_families_unmeasured_ones_and_copies_do_not_judge() -> None:
    truth = np.array([[0.1, 0.2, np.nan], [0.3, 0.4, 0.5], [0.6, 0.7, 0.8]])
    judged = judged_pairs(World(jobs=[], truth=truth, graphs={}), np.array([False, False, True]))
    assert np.argwhere(judged).tolist() == [[1, 2], [2, 0], [2, 1]]


def test_errors_and_coverage_are_of_all_parts_together() -> None:
    parts = [
        Answers(
            measured=np.array([measured]),
            value=np.array([0.5]),
            lower=np.array([0.2]),
            upper=np.array([1.0]),
        )
        for measured in (0.3, 0.1, 0.9)
    ]
    figures = score(parts)
    assert figures["all"]["pairs"] == 3
    assert figures["all"]["mae"] == pytest.approx(1.0 / 3, abs=1e-4)
    assert figures["all"]["bias"] == pytest.approx(0.2 / 3, abs=1e-4)
    assert figures["all"]["coverage_90_ratio"] == pytest.approx(2 / 3, abs=1e-4)
    assert figures["light"]["pairs"] == 2
    assert figures["light"]["coverage_90_ratio"] == 0.5
