"""Whether jobs consent to share a GPU with several others."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from predictor_service.features.turn_taking import exceed_sum
from scheduler_service.core.capacity import (
    Resident,
    crowd_slowdown_ratio,
    expected_slowdown_ratio,
    sharing_obstacle,
)
from scheduler_service.core.prediction_store import PredictionStore
from scheduler_service.core.records import Share
from tests.support.scheduling import GIB, all_pairs, gpu, job, prediction, store


def residents(count: int, limit_ratio: float = 0.2, share: Share = Share.SAFE) -> list[Resident]:
    requests = [job(f"j{index}", share=share, max_slowdown_ratio=limit_ratio) for index in range(count)]
    return [Resident(request=request, sub_batch=1, memory_reserved_bytes=GIB) for request in requests]


def known(utilization_ratios: list[float], slowdown_ratio: float) -> PredictionStore:
    keys = [f"key-j{index}" for index in range(len(utilization_ratios))]
    jobs = [prediction(key, utilization_ratio=share) for key, share in zip(keys, utilization_ratios, strict=True)]
    return store(jobs, all_pairs(keys, slowdown_ratio))


def test_three_jobs_suffer_more_than_the_sum_of_pairs_by_what_the_predictor_says() -> None:
    shares = [0.2, 0.5, 0.7]
    jobs, predictions = residents(3), known(shares, 0.1)
    beyond = [
        crowd_slowdown_ratio(victim, [one for one in jobs if one is not victim], gpu(), predictions) for victim in jobs
    ]
    assert beyond == pytest.approx(exceed_sum(np.array(shares)).tolist())
    assert min(beyond) > 0.02


@pytest.mark.parametrize("seed", range(20))
def test_of_four_jobs_every_two_neighbours_count_by_themselves(seed: int) -> None:
    luck = random.Random(seed)
    shares = [luck.uniform(0.05, 1.0) for _ in range(4)]
    victim, *others = residents(4)
    beyond = crowd_slowdown_ratio(victim, others, gpu(), known(shares, 0.1))
    assert -0.03 < beyond - exceed_sum(np.array(shares))[0] < 0.12


def test_the_sum_of_pairs_alone_does_not_let_a_third_job_in() -> None:
    newcomer, *others = residents(3, limit_ratio=0.2)
    predictions = known([0.5, 0.5, 0.5], 0.099)
    assert expected_slowdown_ratio(newcomer, others, gpu(), predictions)[0] == pytest.approx(0.198)
    refusal = sharing_obstacle(newcomer, others, gpu(), predictions)
    assert refusal is not None
    assert refusal.code == "SLOWDOWN_TOO_HIGH"
    assert refusal.numbers["slowdown_ratio"] > 0.25
    assert sharing_obstacle(newcomer, others[:1], gpu(), predictions) is None


@pytest.mark.parametrize("seed", range(40))
def test_whoever_is_refused_by_the_sum_of_pairs_stays_refused(seed: int) -> None:
    luck = random.Random(seed)
    count = luck.randrange(2, 6)
    jobs = residents(count, limit_ratio=luck.uniform(0.0, 0.5))
    predictions = known([luck.random() for _ in jobs], luck.uniform(0.0, 0.2))
    for victim, other_count in itertools.product(jobs, range(1, count)):
        others = [one for one in jobs if one is not victim][:other_count]
        assert crowd_slowdown_ratio(victim, others, gpu(), predictions) >= 0.0
        suffers, _ = expected_slowdown_ratio(victim, others, gpu(), predictions)
        if suffers > victim.request.max_slowdown_ratio:
            assert sharing_obstacle(victim, others, gpu(), predictions) is not None


def test_jobs_of_which_nothing_is_known_add_nothing() -> None:
    jobs = residents(3, share=Share.ANY)
    assert crowd_slowdown_ratio(jobs[0], jobs[1:], gpu(), store()) == 0.0
    assert sharing_obstacle(jobs[0], jobs[1:], gpu(), store()) is None
