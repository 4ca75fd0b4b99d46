"""Optimus, section 3: the loss curve of Eq. (1), the speed functions of Eq. (3) and (4), and the error of Fig. 8."""

import numpy as np
import pytest

from predictor_service.convergence.curve_forms import fit_optimus
from predictor_service.convergence.loss_series import prepare_losses
from predictor_service.convergence.training_end import LOOSE_FACTOR, OVERESTIMATE, Goal, find_end, predict_end
from predictor_service.convergence.training_speed import SpeedSample, Synchrony, fit_speed, remaining_ms
from tests.support.optimus_speeds import PAIRS, TABLE_2, estimation_error, speed

SEEDS = 25


@pytest.mark.parametrize("synchrony", list(TABLE_2))
def test_ten_exact_pairs_of_400_give_back_the_coefficients_of_table_2(synchrony: Synchrony) -> None:
    chosen = np.random.default_rng(1).choice(len(PAIRS), 10, replace=False)
    model = fit_speed(
        [SpeedSample(resources=PAIRS[i], steps_per_s=speed(synchrony, PAIRS[i])) for i in chosen], synchrony
    )
    assert model.coefficients == pytest.approx(TABLE_2[synchrony], abs=1e-6)
    assert model.error_ratio < 1e-9
    assert model.left_out_error_ratio is not None
    assert model.left_out_error_ratio < 1e-6


@pytest.mark.parametrize("synchrony", list(TABLE_2))
def test_figure_8_ten_pairs_of_400_estimate_the_others_within_6_percent(synchrony: Synchrony) -> None:
    errors = [estimation_error(synchrony, 10, 0.05, seed) for seed in range(SEEDS)]
    assert np.mean(errors) <= 0.06


@pytest.mark.endurance
@pytest.mark.parametrize("synchrony", list(TABLE_2))
def test_figure_8_more_pairs_give_smaller_errors_with_diminishing_return(synchrony: Synchrony) -> None:
    five, ten, forty, many = (
        np.mean([estimation_error(synchrony, count, 0.05, seed) for seed in range(SEEDS)]) for count in (5, 10, 40, 160)
    )
    assert five > ten > forty > many
    assert five - ten > ten - forty > forty - many


def test_equation_1_is_found_again_from_its_own_points() -> None:
    epochs = np.arange(40.0)
    fitted = fit_optimus(epochs, 1 / (0.2 * epochs + 1.0) + 0.1)
    assert (fitted.parameters["b0"], fitted.parameters["b1"]) == pytest.approx((0.2, 1.0), rel=0.03)
    assert fitted.parameters["b2"] == pytest.approx(0.1, abs=0.002)


def test_convergence_is_the_owner_s_threshold_held_for_several_epochs() -> None:
    losses = [1.0, 0.5, 0.495, 0.3, 0.299, 0.298, 0.297, 0.296, 0.295, 0.294]
    series = prepare_losses(range(10), losses)
    assert find_end(series, Goal(threshold=0.01, patience=3)) == 8.0
    assert find_end(series, Goal(threshold=0.01, patience=6)) is None


def test_three_times_the_threshold_is_planned_with_first_and_5_percent_added() -> None:
    epochs = np.arange(15.0)
    series = prepare_losses(epochs, 1 / (0.2 * epochs + 1.0) + 0.1)
    end = predict_end(series, Goal(threshold=0.001))
    loose = predict_end(series, Goal(threshold=0.001 * LOOSE_FACTOR))
    assert end.loose_epochs_total is not None
    assert end.epochs_total is not None
    assert loose.epochs_total is not None
    assert 14 < end.loose_epochs_total < end.epochs_total
    assert end.planned_remaining == pytest.approx(OVERESTIMATE * (end.loose_epochs_total - 14))


def test_remaining_time_counts_steps_not_epochs() -> None:
    assert remaining_ms(steps=3 * 500, steps_per_s=5.0) == 300_000
