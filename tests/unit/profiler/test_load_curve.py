from __future__ import annotations

import numpy as np
import pytest
from cotenant_profiler.load_curve import fit_load_curve


def test_a_line_and_a_parabola_are_found_again() -> None:
    below, above = np.linspace(0.1, 1.0, 10), np.linspace(1.05, 2.0, 20)
    slowdown = np.concatenate((0.1 + 0.2 * below, 0.5 - 0.9 * above + 0.7 * above**2))
    curve = fit_load_curve(np.concatenate((below, above)).tolist(), slowdown.tolist())
    assert curve.line == pytest.approx((0.2, 0.1))
    assert curve.parabola == pytest.approx((0.7, -0.9, 0.5))
    assert curve.r_squared == pytest.approx(1.0)
    assert (curve.rows_below, curve.rows_above) == (10, 20)


def test_slowdowns_that_have_nothing_to_do_with_the_load_explain_almost_nothing() -> None:
    generator = np.random.default_rng(3)
    curve = fit_load_curve(generator.uniform(0, 2, 400).tolist(), generator.normal(size=400).tolist())
    assert curve.r_squared is not None
    assert curve.r_squared < 0.1


def test_a_side_with_too_few_loads_is_not_fitted() -> None:
    curve = fit_load_curve([0.5, 0.6, 1.2, 1.4, 1.6, 1.8, 2.0], [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.3])
    assert curve.line == ()
    assert len(curve.parabola) == 3
    assert np.isnan(curve.values(np.array([0.5]))).all()


@pytest.mark.parametrize("rows", [0, 1, 5], ids=["no row", "one row", "equal rows"])
def test_without_different_slowdowns_nothing_is_claimed(rows: int) -> None:
    assert fit_load_curve([1.5] * rows, [0.4] * rows).r_squared is None
