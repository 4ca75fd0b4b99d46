"""Intervals for rows of groups that were not measured."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.selection.conformal import SAFETY_FACTOR, calibrate, calibrate_groups, few_groups_factor

GROUPS = 19


def groups_of(rows_of_each: list[int]) -> list[frozenset[str]]:
    return [frozenset({f"g{group}"}) for group, rows in enumerate(rows_of_each) for _ in range(rows)]


def test_a_group_has_one_vote_however_many_rows_it_has() -> None:
    sizes = [200] + [1] * (GROUPS - 1)
    residuals = np.concatenate([np.full(200, 0.01), np.linspace(0.1, 0.95, GROUPS - 1)])
    # 18 of 19 groups, and the twentieth may lie anywhere: nine tenths of twenty groups.
    assert calibrate_groups(residuals, groups_of(sizes)).half_width(0.9) == pytest.approx(0.9, abs=1e-6)
    assert calibrate(residuals, GROUPS).half_width(0.9) == pytest.approx(0.01)


def test_groups_of_one_row_are_rows() -> None:
    residuals = np.random.default_rng(0).normal(0.0, 1.0, 40)
    by_group, by_row = calibrate_groups(residuals, groups_of([1] * 40)), calibrate(residuals, 40)
    assert by_group == by_row


def test_rows_of_a_new_group_have_nominal_coverage_whatever_the_errors() -> None:
    """Groups err as one, a few of them wildly; the quantile of rows does not cover as stated."""
    random, groups = np.random.default_rng(2), 24
    held: dict[str, list[float]] = {"groups": [], "rows": []}
    for _ in range(400):
        sizes = random.integers(1, 30, groups + 1)
        shifts = random.standard_t(1.0, groups + 1)
        errors = [shift + random.normal(0.0, 0.3, size) for shift, size in zip(shifts, sizes, strict=True)]
        known = np.concatenate(errors[:-1])
        bounds = calibrate_groups(known, groups_of(sizes[:-1].tolist()))
        held["groups"].append(float((np.abs(errors[-1]) <= bounds.half_width(0.9)).mean()))
        held["rows"].append(float((np.abs(errors[-1]) <= calibrate(known, groups).half_width(0.9)).mean()))
    assert np.mean(held["groups"]) > 0.86  # three standard errors of the mean below 0.9
    assert np.mean(held["rows"]) < np.mean(held["groups"])


def test_too_few_groups_for_a_quantile_are_widened_as_few_measurements_are() -> None:
    residuals = np.concatenate([np.full(5, 0.1), np.full(5, 0.2), np.full(5, -0.4), np.full(5, 0.3)])
    bounds = calibrate_groups(residuals, groups_of([5] * 4))
    assert bounds.half_width(0.9) == pytest.approx(0.4 * few_groups_factor(4, 0.9))
    assert bounds.upper_offset(0.99) == pytest.approx(0.3 * SAFETY_FACTOR)


def test_rows_of_few_groups_support_a_90_percent_bound_and_no_99_percent_one() -> None:
    bounds = calibrate(np.linspace(-1.0, 1.0, 400), groups=5)
    assert (bounds.is_supported(0.9), bounds.is_supported(0.99)) == (True, False)
    assert bounds.upper_offset(0.99) == pytest.approx(SAFETY_FACTOR)
    assert bounds.upper_offset(0.9) == pytest.approx(0.8, abs=0.02)


def test_a_bound_above_a_prediction_never_lies_below_it_although_all_predictions_were_too_high() -> None:
    bounds = calibrate(np.linspace(-2.0, -1.0, 400), groups=400)
    assert bounds.upper_offset(0.9) == 0.0
    assert bounds.half_width(0.9) == pytest.approx(1.9, abs=0.01)
