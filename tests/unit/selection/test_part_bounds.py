"""Intervals where parts were held out together: as wide as the row's spread, few groups and the worst part say."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.selection.conformal import calibrate_parts, few_groups_factor

_ALIKE = np.ones(9)


def test_rows_of_a_larger_spread_get_wider_intervals() -> None:
    random = np.random.default_rng(0)
    bounds = calibrate_parts(random.standard_normal(400), [400], 100)
    widths = bounds.half_width(np.array([0.1, 0.2, 0.1, 0.2]), 0.9)
    assert widths[1::2] == pytest.approx(2.0 * widths[0])
    assert widths[0] == pytest.approx(0.1645 * few_groups_factor(100, 0.9), rel=0.15)


def test_the_worst_part_sets_the_least_width() -> None:
    residuals = np.concatenate([np.full(50, 0.01), np.full(50, -0.5), np.full(50, 0.02)])
    bounds = calibrate_parts(residuals, [50, 50, 50], 1_000)
    assert (bounds.half_width(_ALIKE, 0.9) >= 0.5).all()


def test_few_groups_widen_what_rows_alone_would_promise() -> None:
    residuals = np.linspace(-1.0, 1.0, 99)
    few, many = (calibrate_parts(residuals, [99], groups).half_width(_ALIKE, 0.9)[0] for groups in (3, 1_000))
    assert few == pytest.approx(many * few_groups_factor(3, 0.9) / few_groups_factor(1_000, 0.9))


def test_without_parts_the_rows_alone_set_the_width() -> None:
    bounds = calibrate_parts(np.array([-0.3, 0.3]), (), 1)
    assert np.isfinite(bounds.half_width(_ALIKE, 0.9)).all()
    assert np.isfinite(bounds.upper_offset(_ALIKE, 0.99)).all()
