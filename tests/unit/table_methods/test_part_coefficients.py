"""Coefficients of parts are those that made the measurements, and stay physics where measurements do not decide."""

from __future__ import annotations

import numpy as np

from predictor_service.learning.learning_task import FloatArray
from predictor_service.table_methods.part_coefficients import fit_sums, fit_times

EXPECTED = np.array([2.0, 0.5, 4.0])


def parts_of(rows: int, seed: int = 0) -> FloatArray:
    return np.asarray(10.0 ** np.random.default_rng(seed).uniform(-2.0, 2.0, size=(rows, 3)))


def test_times_get_the_coefficients_that_made_them() -> None:
    parts = parts_of(200)
    assert np.allclose(fit_times(parts, parts @ EXPECTED), EXPECTED, rtol=0.05)


def test_a_tenth_of_the_rows_that_count_another_unit_does_not_move_times() -> None:
    parts = parts_of(200)
    measured = parts @ EXPECTED
    measured[::10] *= 300.0
    assert np.allclose(fit_times(parts, measured), EXPECTED, rtol=0.3)


def test_a_part_that_no_row_has_costs_what_the_peaks_give() -> None:
    parts = parts_of(60)
    parts[:, 1] = 0.0
    assert fit_times(parts, parts @ EXPECTED)[1] == 1.0


def test_few_rows_leave_times_near_the_peaks() -> None:
    parts = parts_of(1)
    fitted = fit_times(parts, 100.0 * parts.sum(axis=1))
    assert (fitted >= 1.0).all()
    assert fitted.max() < 100.0
    assert np.array_equal(fit_times(parts[:0], np.zeros(0)), np.ones(3))


def test_sums_get_the_coefficients_that_made_them_and_wait_for_enough_rows() -> None:
    parts = parts_of(40)
    assert np.allclose(fit_sums(parts, parts @ EXPECTED), EXPECTED)
    assert np.array_equal(fit_sums(parts[:11], parts[:11] @ EXPECTED), np.ones(3))
