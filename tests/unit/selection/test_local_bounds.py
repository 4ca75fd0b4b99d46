"""Intervals that are wide where residuals are large."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from predictor_service.regressors.interface import FloatArray
from predictor_service.selection import local_bounds
from predictor_service.selection.conformal import SAFETY_FACTOR
from predictor_service.selection.local_bounds import BRIEF, learn_bounds

GROUPS = 60


def rows(seed: int, per_group: int = 10) -> tuple[FloatArray, FloatArray, list[frozenset[str]]]:
    """Residuals whose size grows with the first column, grouped."""
    random = np.random.default_rng(seed)
    table = random.uniform(0.0, 1.0, (GROUPS * per_group, 3))
    residuals = random.normal(0.0, 0.02 + 0.4 * table[:, 0])
    return table, residuals, [frozenset({f"g{row // per_group}"}) for row in range(len(table))]


def test_bounds_are_wide_where_residuals_are_large_and_cover_on_either_side() -> None:
    bounds = learn_bounds(*rows(0), seed=0)
    table, residuals, _ = rows(1)
    half_width = bounds.interval(table, 0.9)
    calm, wild = table[:, 0] < 0.3, table[:, 0] > 0.7
    assert half_width[calm].mean() < 0.6 * half_width[wild].mean()
    for side in (calm, wild):
        assert (np.abs(residuals[side]) <= half_width[side]).mean() > 0.8


def test_few_rows_have_one_spread() -> None:
    table, residuals, groups = rows(0, per_group=1)
    bounds = learn_bounds(table[:20], residuals[:20], groups[:20], seed=0)
    assert len(set(bounds.interval(table, 0.9).tolist())) == 1


def test_a_model_without_errors_still_has_a_finite_bound() -> None:
    table, residuals, groups = rows(0)
    bounds = learn_bounds(table, np.zeros_like(residuals), groups, seed=0)
    assert bounds.upper(table, 0.99) == pytest.approx(0.0)


def test_with_too_few_groups_no_bound_is_wider_than_the_largest_residual_with_its_margin() -> None:
    table, residuals, groups = rows(0)
    bounds = learn_bounds(table, residuals, groups, seed=0)
    upper = bounds.upper(table, 0.99)
    assert upper.max() <= residuals.max() * SAFETY_FACTOR + 1e-9
    assert upper.min() < upper.max()


def test_the_cap_of_the_spread_is_the_one_whose_bound_costs_least(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    table = random.uniform(0.0, 1.0, (600, 3))
    residuals = (0.02 + 0.2 * table[:, 0]) * np.where(table[:, 1] > 0.97, random.standard_t(1.5, 600), 1.0)
    groups = [frozenset({f"g{row // 4}"}) for row in range(600)]
    costs = []
    for caps in ((1.0,), (0.9, 0.95, 0.98, 1.0)):
        monkeypatch.setattr(local_bounds, "_SPREAD_MAX_QUANTILES", caps)
        upper = local_bounds.learn_bounds(table, residuals, groups, seed=0).upper(table, 0.99)
        assert (residuals <= upper).mean() > 0.98
        costs.append(float(np.exp(upper - residuals).mean()))
    assert costs[1] <= costs[0]


def test_the_power_of_the_spread_is_the_one_whose_bound_costs_least() -> None:
    random = np.random.default_rng(5)
    table = random.uniform(0.0, 1.0, (600, 3))
    residuals = random.standard_t(2.0, 600) * (0.02 + 0.3 * table[:, 0]) ** 2
    groups = [frozenset({f"g{row // 4}"}) for row in range(600)]
    powers = {
        exponents: learn_bounds(
            table, residuals, groups, seed=0, search=dataclasses.replace(BRIEF, exponents=exponents)
        )
        for exponents in ((0.5,), (1.0,), (0.5, 1.0))
    }
    dearer, cheaper = sorted((powers[0.5,], powers[1.0,]), key=lambda bounds: -bounds.cost)
    assert cheaper.cost < dearer.cost
    assert powers[0.5, 1.0].exponent == cheaper.exponent
    assert powers[0.5, 1.0].cost == cheaper.cost


def test_rows_whose_bounds_have_a_margin_leave_the_others_narrower_ones() -> None:
    table, residuals, groups = rows(0)
    is_strange = table[:, 1] > 0.9
    residuals = np.where(is_strange, residuals + 1.0, residuals)
    margins = np.where(is_strange, 1.0, 0.0)
    alike, apart = (learn_bounds(table[:, :1], residuals, groups, seed=0, margins=given) for given in (None, margins))
    before, upper = alike.upper(table[:, :1], 0.99), margins + apart.upper(table[:, :1], 0.99)

    assert (residuals <= upper).mean() >= 0.99
    assert upper[~is_strange].mean() < 0.7 * before[~is_strange].mean()
    assert (residuals <= upper)[is_strange].mean() > 0.95
