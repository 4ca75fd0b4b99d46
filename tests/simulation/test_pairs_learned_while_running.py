"""A cluster of an unmeasured device type: what agents report makes predictions of pairs right."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.interference_online import World, lighten, name_graph, stream_outcomes
from cotenant.job_settings import JobSettings
from predictor_service.inference.records import PairJob

_JOBS = 8


def _world(seed: int) -> World:
    """Jobs that are known alone; each has a sensitivity and an effect of its own that nothing known of it shows."""
    random = np.random.default_rng(seed)
    sensitivity, effect = random.uniform(0.0, 0.7, (2, _JOBS))
    jobs = [
        PairJob(
            job_id=f"job{number}",
            settings=JobSettings(global_batch_size=8),
            graph_sha256=name_graph(str(number)),
            known_step_ms=float(random.uniform(5.0, 50.0)),
            known_utilization_ratio=0.9,
            known_memory_bytes=1 << 30,
        )
        for number in range(_JOBS)
    ]
    return World(jobs=jobs, truth=np.expm1(0.2 + sensitivity[:, None] + effect[None, :]), graphs={})


@pytest.fixture(name="after", scope="module")
def _after() -> dict[str, dict[str, float]]:
    figures = stream_outcomes(_world(seed=4), range(4))["after_outcomes"]
    assert isinstance(figures, dict)
    return figures


def test_without_outcomes_every_pair_is_answered_by_the_start(after: dict[str, dict[str, float]]) -> None:
    assert after["0"]["observed_share"] == 0.0
    assert after["0"]["mae"] == after["0"]["mae_unobserved"] == after["0"]["mae_if_only_overridden"] > 0.2


def test_some_minutes_of_outcomes_teach_more_than_the_pairs_that_they_are_of(
    after: dict[str, dict[str, float]],
) -> None:
    half = after["30"]
    assert half["observed_share"] < 0.5
    assert half["mae_unobserved"] < 0.6 * half["mae_unobserved_of_the_start"]
    assert half["mae"] < 0.7 * half["mae_if_only_overridden"]


def test_errors_shrink_with_every_step_and_end_near_the_noise_of_the_windows(
    after: dict[str, dict[str, float]],
) -> None:
    errors = [figures["mae"] for figures in after.values()]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.15 * errors[0]


@pytest.mark.endurance
def test_a_campaign_of_light_interference_is_never_answered_worse_than_by_no_slowdown() -> None:
    """Jobs that keep the device busy and yet hardly slow each other down: predictions shrink as the windows say."""
    light = lighten(_world(seed=4), 0.2)
    figures = stream_outcomes(light, range(4))["after_outcomes"]
    assert isinstance(figures, dict)
    after = {count: each for count, each in figures.items() if count != "0"}
    assert all(each["mae"] < each["mae_if_nobody_slows_anybody"] for each in after.values())
    assert all(each["coverage_90_ratio"] >= 0.87 for each in after.values())
    assert after["100"]["mae"] < 0.5 * after["100"]["mae_if_nobody_slows_anybody"]


def test_intervals_hold_while_the_cluster_learns(after: dict[str, dict[str, float]]) -> None:
    assert after["0"]["coverage_90_ratio"] < 0.5  # the start knows nothing of sensitivities
    assert all(after[count]["coverage_90_ratio"] > 0.85 for count in ("10", "30", "100"))
