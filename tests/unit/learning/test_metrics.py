"""Metrics against figures worked out by hand, and intervals against known spreads."""

import math

import numpy as np
import pytest

from predictor_service.learning.learning_task import Forecast
from predictor_service.learning.metrics import POINT_METRICS, measure_forecast, measure_points
from predictor_service.learning.resampling import bootstrap, bootstrap_ratios, divide_metrics
from predictor_service.selection.targets import SLOWDOWN, STEP, UTILIZATION


def forecast(value: list[float], half_width: float, upper_99: list[float]) -> Forecast:
    values = np.array(value)
    return Forecast(
        value=values,
        lower_90=values - half_width,
        upper_90=values + half_width,
        upper_99=np.array(upper_99),
        in_domain=np.ones(len(values), dtype=bool),
    )


def test_all_metrics_of_two_rows_worked_out_by_hand() -> None:
    scored = measure_forecast(STEP, forecast([10.0, 30.0], 5.0, [20.0, 39.0]), np.array([8.0, 40.0])).as_mapping()
    of_intervals = "coverage_90_ratio", "coverage_99_ratio", "interval_90_width_mean", "upper_99_over_actual_mean"
    assert tuple(scored) == (*POINT_METRICS, *of_intervals)
    expected = {
        "mae": 6.0,
        "rmse": math.sqrt((4 + 100) / 2),
        "mape_ratio": (2 / 8 + 10 / 40) / 2,
        "rmsle": math.sqrt((math.log(11 / 9) ** 2 + math.log(31 / 41) ** 2) / 2),
        "bias": -4.0,
        "under_prediction_ratio": 0.5,
        "coverage_90_ratio": 0.5,
        "coverage_99_ratio": 0.5,
        "interval_90_width_mean": 10.0,
        "upper_99_over_actual_mean": (20 / 8 + 39 / 40) / 2,
    }
    assert scored == pytest.approx(expected)


def test_a_value_at_the_end_of_an_interval_is_inside() -> None:
    """A device that is always busy is measured at 1, where its interval ends."""
    scored = measure_forecast(UTILIZATION, forecast([0.5, 0.5], 0.25, [0.75, 0.75]), np.array([0.25, 0.75]))
    assert scored.as_mapping()["coverage_90_ratio"] == scored.as_mapping()["coverage_99_ratio"] == 1.0


def test_a_slowdown_is_judged_relative_to_the_shared_time_and_may_be_zero_or_negative() -> None:
    scored = measure_points(SLOWDOWN, np.array([0.5, -0.1]), np.array([0.0, -0.25])).as_mapping()
    assert scored["mape_ratio"] == pytest.approx((0.5 / 1.0 + 0.15 / 0.75) / 2)
    assert scored["rmsle"] == pytest.approx(math.sqrt((math.log(1.5) ** 2 + math.log(0.9 / 0.75) ** 2) / 2))


def test_utilization_enters_the_logarithm_in_per_cent() -> None:
    scored = measure_points(UTILIZATION, np.array([0.5]), np.array([0.25])).as_mapping()
    assert scored["rmsle"] == pytest.approx(math.log(51 / 26))


def test_a_row_without_a_value_of_a_metric_is_left_out_of_it_only() -> None:
    scored = measure_points(UTILIZATION, np.array([0.2, 0.2]), np.array([0.0, 0.1])).as_mapping()
    assert scored["mape_ratio"] == pytest.approx(1.0)
    assert scored["mae"] == pytest.approx(0.15)
    assert measure_points(UTILIZATION, np.array([0.2]), np.array([0.0])).as_mapping()["mape_ratio"] is None


def test_rows_of_one_group_are_one_witness() -> None:
    """A hundred rows of four groups are as uncertain as four rows."""
    errors = measure_points(STEP, np.repeat([1.0, 2.0, 3.0, 4.0], 25), np.full(100, 5.0))
    by_group = bootstrap(errors, [frozenset({str(row // 25)}) for row in range(100)], seed=0)["mae"]
    by_row = bootstrap(errors, [frozenset({str(row)}) for row in range(100)], seed=0)["mae"]
    few = measure_points(STEP, np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, 5.0))
    of_few = bootstrap(few, [frozenset({str(row)}) for row in range(4)], seed=0)["mae"]
    assert by_group == of_few
    assert by_group is not None
    assert by_row is not None
    assert by_group[1] - by_group[0] > 3 * (by_row[1] - by_row[0])


def test_a_ratio_is_resampled_on_the_same_draws() -> None:
    """Ours is exactly half of theirs in every group, so the ratio has no spread at all."""
    random = np.random.default_rng(0)
    theirs = random.exponential(1.0, 60)
    groups = [frozenset({str(row % 6)}) for row in range(60)]
    parts = [measure_points(STEP, 5 + errors, np.full(60, 5.0)) for errors in (theirs / 2, theirs)]
    assert bootstrap_ratios(parts[0], parts[1], groups, seed=1)["mae"] == pytest.approx((0.5, 0.5))
    ratios = divide_metrics(parts[0].as_mapping(), parts[1].as_mapping())
    assert ratios["mae"] == pytest.approx(0.5)


def test_rows_of_two_groups_count_only_when_both_are_drawn() -> None:
    errors = measure_points(SLOWDOWN, np.array([1.0, 0.0]), np.zeros(2))
    interval = bootstrap(errors, [frozenset({"a", "b"}), frozenset({"c"})], seed=0)["mae"]
    assert interval == (0.0, 1.0)
