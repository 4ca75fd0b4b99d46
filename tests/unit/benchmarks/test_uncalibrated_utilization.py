"""The law of utilization for devices without measurements: what the command learns, and that it beats a mean."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.uncalibrated_utilization import Campaigns, judge, learn, read_campaigns, without
from predictor_service.features.uncalibrated_utilization import LAW
from tests.support.shared_data import shared_data


@cache
def campaigns() -> Campaigns:
    return read_campaigns(shared_data("gpumemnet").parent)


@pytest.mark.endurance
def test_the_committed_law_is_what_the_public_rows_teach() -> None:
    learned = learn(campaigns())
    for name in ("level", "slope", "below", "above"):
        assert learned[name] == pytest.approx(getattr(LAW, name), abs=0.02)


@pytest.mark.endurance
@pytest.mark.parametrize("name", ["cnn", "mlp", "miso", "alnair"])
def test_a_campaign_that_taught_nothing_is_answered_better_than_by_the_mean_of_the_others(name: str) -> None:
    found = judge(without(campaigns(), name), campaigns()[name])
    assert found["mae"] < found["mae_of_training_mean"]
