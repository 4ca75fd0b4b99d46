"""Our exact non-negative least squares against an independent solver."""

import numpy as np
import pytest
from scipy.optimize import nnls

from predictor_service.convergence.nonnegative_fit import COLUMNS_MAX, fit_nonnegative
from tests.support.cases import for_each


@for_each("columns", range(1, COLUMNS_MAX + 1))
def test_the_residual_is_that_of_an_active_set_solver(columns: int) -> None:
    random = np.random.default_rng(columns)
    for rows in (columns, columns + 1, 40):
        for _ in range(15):
            matrix = random.normal(size=(rows, columns)) * 10.0 ** random.integers(-3, 4, columns)
            target = random.normal(size=rows)
            found = fit_nonnegative(matrix, target)
            _, expected = nnls(matrix, target)
            assert (found >= 0).all()
            assert np.linalg.norm(matrix @ found - target) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_columns_of_zeros_and_equal_columns_do_no_harm() -> None:
    matrix = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    assert matrix @ fit_nonnegative(matrix, np.array([3.0, 6.0])) == pytest.approx([3.0, 6.0])


def test_more_columns_than_are_tried_in_all_subsets_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        fit_nonnegative(np.ones((3, COLUMNS_MAX + 1)), np.ones(3))
