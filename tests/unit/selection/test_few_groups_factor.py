"""Few groups say little of one more."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.selection.conformal import few_groups_factor


def test_the_widening_factor_falls_with_the_number_of_groups_to_one() -> None:
    windows = [few_groups_factor(groups, 0.9) for groups in (2, 3, 4, 6, 10, 30, 1_000)]
    assert windows == sorted(windows, reverse=True)
    assert windows[1] == pytest.approx(2.05, abs=0.01)
    assert windows[-1] == pytest.approx(1.0, abs=0.005)


def test_one_group_is_taken_for_two() -> None:
    assert few_groups_factor(1, 0.9) == few_groups_factor(2, 0.9)


@pytest.mark.parametrize("groups", [3, 5, 8])
def test_a_new_group_that_errs_as_one_has_nominal_coverage(groups: int) -> None:
    random = np.random.default_rng(groups)
    errors = random.standard_normal((20_000, groups))
    centre, spread = errors.mean(axis=1), errors.std(axis=1, ddof=1)
    half_width = 1.6449 * spread * few_groups_factor(groups, 0.9)
    inside = np.abs(random.standard_normal(20_000) - centre) <= half_width
    assert inside.mean() == pytest.approx(0.9, abs=0.01)
