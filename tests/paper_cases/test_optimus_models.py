"""Optimus, section 3: the loss curve of Eq. (1), the speed functions of Eq. (3) and (4), and the error of Fig. 8.

The paper prints neither M nor the unit of Table 2, so that M = 20 samples here; the claim of Fig. 8 is relative.
"""

import numpy as np
import pytest

from predictor_service.convergence.curve_forms import fit_optimus
from predictor_service.convergence.loss_series import prepare_losses
from predictor_service.convergence.training_end import LOOSE_FACTOR, OVERESTIMATE, Goal, find_end, predict_end
from predictor_service.convergence.training_speed import Resources, SpeedSample, Synchrony, fit_speed, remaining_ms

TABLE_2 = {
    Synchrony.ASYNCHRONOUS: (2.83, 3.92, 0.00, 0.11),
    Synchrony.SYNCHRONOUS: (1.02, 2.78, 4.92, 0.00, 0.02),
}
BATCH = 20
PAIRS = [Resources(workers=w, servers=p, batch=BATCH) for w in range(1, 21) for p in range(1, 21)]
SEEDS = 25


def speed(synchrony: Synchrony, resources: Resources) -> float:
    """Eq. (3) and Eq. (4) as printed."""
    w, p, theta = resources.workers, resources.servers, TABLE_2[synchrony]
    if synchrony is Synchrony.ASYNCHRONOUS:
        return w / (theta[0] + theta[1] * w / p + theta[2] * w + theta[3] * p)
    return 1 / (theta[0] * BATCH / w + theta[1] + theta[2] * w / p + theta[3] * w + theta[4] * p)


def estimation_error(synchrony: Synchrony, samples: int, noise: float, seed: int) -> float:
    """Mean over all 400 pairs of the error of a function fitted to some, measured with noise."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(PAIRS), samples, replace=False)
    measured = [
        SpeedSample(resources=PAIRS[i], steps_per_s=speed(synchrony, PAIRS[i]) * float(np.exp(random.normal(0, noise))))
        for i in chosen
    ]
    model = fit_speed(measured, synchrony)
    return float(np.mean([abs(model.steps_per_s(item) / speed(synchrony, item) - 1) for item in PAIRS]))


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
    assert fitted.floor == pytest.approx(0.1, abs=0.002)


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
