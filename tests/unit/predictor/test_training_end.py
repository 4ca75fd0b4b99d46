"""Loss curves: what is cleaned, what is predicted, and when the end is unknown."""

import numpy as np
import pytest

from predictor_service.convergence.loss_series import EPOCHS_MAX, prepare_losses, replace_outliers
from predictor_service.convergence.training_end import Goal, TrainingEnd, find_end, predict_end
from predictor_service.errors import InvalidRequestError
from tests.support.cases import for_each

EPOCHS = np.arange(400.0)
SHAPES = {
    "reciprocal": 1.8 / (1 + EPOCHS / 6) + 0.4,
    "power": 2.0 * (1 + EPOCHS) ** -0.7 + 0.3,
    "exponential": 2.0 * np.exp(-EPOCHS / 12) + 0.5,
}


def predict(losses: "np.ndarray[tuple[int], np.dtype[np.float64]]", seen: int, goal: Goal) -> TrainingEnd:
    return predict_end(prepare_losses(EPOCHS[:seen], losses[:seen]), goal)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_form_that_made_a_curve_predicts_its_end_exactly(shape: str) -> None:
    goal = Goal(threshold=0.001)
    truth = find_end(prepare_losses(EPOCHS, SHAPES[shape]), goal)
    assert truth is not None
    end = predict(SHAPES[shape], int(truth * 0.6), goal)
    own = next(item for item in end.forms if item.form.name == shape)
    assert own.epochs_total == pytest.approx(truth, abs=2.5)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_median_of_the_forms_is_near_and_its_interval_holds_the_true_value(shape: str) -> None:
    goal = Goal(threshold=0.002)
    losses = SHAPES[shape] * np.exp(np.random.default_rng(3).normal(0, 0.002, len(EPOCHS)))
    truth = find_end(prepare_losses(EPOCHS, SHAPES[shape]), goal)
    assert truth is not None
    end = predict(losses, int(truth * 0.6), goal)
    assert end.epochs_total is not None
    assert end.lower is not None
    assert end.upper is not None
    assert end.epochs_total == pytest.approx(truth, rel=0.3)
    assert end.lower <= truth <= end.upper


def test_a_spike_and_an_outlier_below_are_replaced_and_a_falling_curve_is_left_alone() -> None:
    losses = SHAPES["power"][:20].copy()
    assert replace_outliers(losses)[1] == 0
    losses[8], losses[14] = 9.0, 0.0
    cleaned, outliers = replace_outliers(losses)
    assert outliers == 2
    assert cleaned[8] == pytest.approx((losses[7] + losses[9]) / 2)


def test_steps_of_one_epoch_count_as_their_mean() -> None:
    steps = np.arange(1, 1001)
    by_step = prepare_losses(steps, 1 / steps, epoch_length=100)
    assert len(by_step.epochs) == 10
    assert by_step.losses[0] == pytest.approx(np.mean(1 / steps[:100]))


def test_a_long_curve_is_averaged_into_a_bounded_number_of_points() -> None:
    steps = np.arange(1, 50_001)
    assert len(prepare_losses(steps, 1 / steps).epochs) <= EPOCHS_MAX + 1


def test_after_a_drop_of_the_learning_rate_training_counts_as_a_new_job() -> None:
    second = 0.6 / (1 + EPOCHS / 5) + 0.1
    losses = np.concatenate([SHAPES["reciprocal"][:60], second[:40]])
    series = prepare_losses(EPOCHS[:100], losses, rate_drops=[60.0, 500.0])
    alone = prepare_losses(EPOCHS[:40], second[:40])
    scale = alone.largest / series.largest
    goal = 0.0005
    joint, fresh = predict_end(series, Goal(threshold=goal)), predict_end(alone, Goal(threshold=goal / scale))
    assert joint.epochs_total is not None
    assert fresh.epochs_total is not None
    assert joint.epochs_total == pytest.approx(60 + fresh.epochs_total, rel=0.02)


def test_an_earlier_job_s_curve_stands_in_for_what_is_still_to_come() -> None:
    losses, goal = SHAPES["exponential"], Goal(threshold=0.002)
    truth = find_end(prepare_losses(EPOCHS, losses), goal)
    alone = predict_end(prepare_losses(EPOCHS[:3], losses[:3]), goal)
    helped = predict_end(prepare_losses(EPOCHS[:3], losses[:3], prior=(EPOCHS, losses)), goal)
    assert alone.epochs_total is None
    assert helped.epochs_total == pytest.approx(truth, rel=0.15)
    assert not helped.reached


def test_a_goal_below_the_floor_of_the_curve_is_not_promised() -> None:
    end = predict(SHAPES["exponential"], 60, Goal(loss=0.1))
    assert end.epochs_total is None
    assert not end.reliable


def test_a_goal_that_is_reached_says_when() -> None:
    end = predict(SHAPES["exponential"], 200, Goal(loss=0.5))
    assert end.reached
    assert end.planned_remaining == 0.0
    assert end.epochs_total is not None
    assert end.epochs_total < 100


@pytest.mark.parametrize("losses", [[], [1.0], [1.0, 0.9, 0.8]])
def test_too_few_points_give_no_answer_instead_of_a_wild_one(losses: list[float]) -> None:
    end = predict_end(prepare_losses(range(len(losses)), losses), Goal(threshold=0.01))
    assert (end.epochs_total, end.reliable) == (None, False)


@for_each("losses", [[0.0] * 30, [1.0] * 30, list(range(1, 31)), [1.0, 5e-324] * 15, [1e300] * 30])
def test_curves_that_are_none_still_get_an_answer(losses: list[float]) -> None:
    end = predict_end(prepare_losses(range(30), losses), Goal(threshold=0.01, patience=40))
    assert end.epochs_total is None or np.isfinite(end.epochs_total)


@for_each(
    ("progress", "losses", "options", "named"),
    [
        ([0, 1], [1.0, float("nan")], {}, "finite"),
        ([0, 1], [1.0, -0.1], {}, "negative"),
        ([1, 0], [1.0, 0.5], {}, "order"),
        ([-1, 0], [1.0, 0.5], {}, "order"),
        ([0, 1], [1.0, 0.5], {"epoch_length": 0.0}, "epoch_length"),
        ([0, 1], [1.0, 0.5], {"rate_drops": [float("inf")]}, "rate_drops"),
        ([0, 1], [1.0, 0.5], {"prior": ([0], [-1.0])}, "prior_points"),
        (range(100_001), [1.0] * 100_001, {}, "at most"),
    ],
)
def test_curves_that_cannot_be_are_refused_by_name(
    progress: list[float], losses: list[float], options: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        prepare_losses(progress, losses, **options)  # type: ignore[arg-type]
