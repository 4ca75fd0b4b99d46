"""Optimus' claims on curves and speeds that others measured; `benchmarks.convergence` prints the whole table."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.convergence import (
    SPEED_SEEDS,
    Curve,
    measure_convergence,
    read_nanogpt,
    read_pollux,
    read_speeds,
    speed_errors,
)
from tests.support.shared_data import shared_data


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, float]]:
    root = shared_data("nanogpt_curves").parent
    curves: list[Curve] = [*read_nanogpt(root), *read_pollux(root)]
    return measure_convergence(curves)


@pytest.mark.endurance
@pytest.mark.parametrize("source", ["nanogpt", "pollux"])
def test_the_end_is_predicted_better_with_more_of_the_curve_and_better_than_naively(
    source: str, figures: dict[str, dict[str, float]]
) -> None:
    early, half, late = (figures[f"{source} at {share}"] for share in ("25%", "50%", "75%"))
    assert late["ours_median_error"] < early["ours_median_error"]
    for seen in (early, half, late):
        assert seen["ours_median_error"] < seen["shrinking_drops_median_error"]


@pytest.mark.endurance
def test_the_paper_s_15_percent_hold_at_half_of_the_training_where_no_learning_rate_drops_unseen(
    figures: dict[str, dict[str, float]],
) -> None:
    assert figures["nanogpt at 50%"]["ours_median_error"] <= 0.15


def test_ten_runs_predict_the_others_better_than_the_nearest_of_them() -> None:
    table = pd.read_csv(shared_data("pollux", "throughput.csv.gz"))
    ours, nearest = [], []
    for samples in read_speeds(table).values():
        errors = np.array([speed_errors(samples, seed) for seed in range(SPEED_SEEDS // 4)])
        ours.append(errors[:, 0].mean())
        nearest.append(errors[:, 1].mean())
    assert np.mean(ours) < 0.85 * np.mean(nearest)
