"""What sharing a GPU with several others costs, and whether jobs consent to it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cotenant.device_sharing import DeviceSharing
from predictor_service.features.time_slicing import exceed_sum
from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import Level, Share
from scheduler_service.core.sharing.colocation_slowdown import (
    PlacementSlowdown,
    colocation_slowdown_ratio,
    expected_slowdown,
    expected_slowdowns,
    placement_slowdown,
)
from scheduler_service.core.sharing.sharing_consent import sharing_obstacle
from tests.support.cases import for_each
from tests.support.scheduling import DEVICE, GIB, all_pairs, gpu, job, pair, prediction, store


def residents(count: int, limit_ratio: float = 0.2, share: Share = Share.SAFE) -> list[Resident]:
    requests = [job(f"j{index}", share=share, max_slowdown_ratio=limit_ratio) for index in range(count)]
    return [Resident(request=request, micro_batch_size=1, memory_reserved_bytes=GIB) for request in requests]


def known(utilization_ratios: list[float], slowdown_ratio: float) -> PredictionStore:
    keys = [f"key-j{index}" for index in range(len(utilization_ratios))]
    jobs = [prediction(key, utilization_ratio=share) for key, share in zip(keys, utilization_ratios, strict=True)]
    return store(jobs, all_pairs(keys, slowdown_ratio))


def beyond_pairs(victim: Resident, others: list[Resident], predictions: PredictionStore) -> float:
    slowdown = expected_slowdown(victim, others, gpu(), predictions)
    return slowdown.ratio - slowdown.pairwise_sum_ratio


def placed(incoming: Resident, gpus: Sequence[Sequence[Resident]], predictions: PredictionStore) -> PlacementSlowdown:
    return placement_slowdown(
        incoming, [expected_slowdowns((incoming, *there), gpu(), predictions) for there in gpus if there]
    )


def test_three_jobs_suffer_more_than_the_sum_of_pairs_by_what_the_predictor_says() -> None:
    shares = [0.2, 0.5, 0.7]
    jobs, predictions = residents(3), known(shares, 0.1)
    beyond = [beyond_pairs(victim, [one for one in jobs if one is not victim], predictions) for victim in jobs]
    assert beyond == pytest.approx(exceed_sum(np.array(shares)).tolist())
    assert min(beyond) > 0.02


def test_jobs_under_mps_take_no_turns_so_that_the_pairs_just_add_up() -> None:
    jobs, predictions = residents(3), known([0.2, 0.5, 0.7], 0.1)
    for one in all_pairs([f"key-j{index}" for index in range(3)], 0.1):
        predictions.put_pair(replace(one, sharing=DeviceSharing.MPS))
    predictions.share(DEVICE, DeviceSharing.MPS)
    for victim in jobs:
        slowdown = expected_slowdown(victim, [one for one in jobs if one is not victim], gpu(), predictions)
        assert slowdown.ratio == slowdown.pairwise_sum_ratio == pytest.approx(0.2)
    predictions.share(DEVICE, DeviceSharing.UNSTATED)
    assert beyond_pairs(jobs[0], jobs[1:], predictions) > 0.02


@for_each("seed", range(20))
def test_of_four_jobs_every_two_colocated_jobs_count_by_themselves(seed: int) -> None:
    generator = random.Random(seed)
    shares = [generator.uniform(0.05, 1.0) for _ in range(4)]
    victim, *others = residents(4)
    beyond = beyond_pairs(victim, others, known(shares, 0.1))
    assert -0.03 < beyond - exceed_sum(np.array(shares))[0] < 0.12


def test_the_sum_of_pairs_alone_does_not_let_a_third_job_in() -> None:
    incoming_job, *others = residents(3, limit_ratio=0.2)
    predictions = known([0.5, 0.5, 0.5], 0.099)
    assert expected_slowdown(incoming_job, others, gpu(), predictions).pairwise_sum_ratio == pytest.approx(0.198)
    refusal = sharing_obstacle(incoming_job, others, gpu(), predictions)
    assert refusal is not None
    assert refusal.code == "SLOWDOWN_TOO_HIGH"
    assert refusal.numbers["slowdown_ratio"] > 0.25
    assert sharing_obstacle(incoming_job, others[:1], gpu(), predictions) is None


@for_each("seed", range(40))
def test_a_job_that_is_refused_by_the_sum_of_pairs_stays_refused(seed: int) -> None:
    generator = random.Random(seed)
    count = generator.randrange(2, 6)
    jobs = residents(count, limit_ratio=generator.uniform(0.0, 0.5))
    predictions = known([generator.random() for _ in jobs], generator.uniform(0.0, 0.2))
    for victim, other_count in itertools.product(jobs, range(1, count)):
        others = [one for one in jobs if one is not victim][:other_count]
        slowdown = expected_slowdown(victim, others, gpu(), predictions)
        assert slowdown.ratio >= slowdown.pairwise_sum_ratio
        if slowdown.pairwise_sum_ratio > victim.request.max_slowdown_ratio:
            assert sharing_obstacle(victim, others, gpu(), predictions) is not None


def test_jobs_of_which_nothing_is_known_add_nothing() -> None:
    jobs = residents(3, share=Share.ANY)
    slowdown = expected_slowdown(jobs[0], jobs[1:], gpu(), store())
    assert (slowdown.ratio, slowdown.is_known) == (0.0, False)
    assert sharing_obstacle(jobs[0], jobs[1:], gpu(), store()) is None


def test_the_pairs_add_up_and_the_waits_of_the_others_come_on_top() -> None:
    assert colocation_slowdown_ratio(0.6, [], []) == 0.0
    assert colocation_slowdown_ratio(0.6, [0.6], [0.1]) == 0.1
    assert colocation_slowdown_ratio(0.6, [0.6, 0.6], [0.1, 0.1]) == pytest.approx(0.2 + 0.6 * 0.36 * 0.8 / 1.36)
    assert colocation_slowdown_ratio(0.6, [1.0, 1.0], [0.1, -0.1]) == 0.1


@for_each("seed", range(40))
def test_of_one_set_of_jobs_every_question_has_the_same_answer(seed: int) -> None:
    generator = random.Random(seed)
    shares = [generator.random() for _ in range(1 + seed % 4)]
    incoming, *others = residents(len(shares), limit_ratio=0.0)
    pairs = generator.uniform(0.01, 0.3)
    predictions, count = known(shares, pairs), len(others)
    ratios = [
        colocation_slowdown_ratio(shares[at], shares[:at] + shares[at + 1 :], [pairs] * count)
        for at in range(len(shares))
    ]
    found = placed(incoming, [others], predictions)
    assert (found.own_ratio, found.neighbour_ratio) == (ratios[0], max(ratios[1:], default=0.0))
    refusal = sharing_obstacle(incoming, others, gpu(), predictions) if others else None
    assert (refusal.numbers["slowdown_ratio"] if refusal is not None else 0.0) == ratios[0]


def test_a_placement_is_as_slow_as_its_worst_gpu_and_unknown_where_a_pair_is() -> None:
    incoming, first, second = residents(3, share=Share.ANY)
    half = store([prediction("key-j0"), prediction("key-j1")], all_pairs(["key-j0", "key-j1"], 0.1))
    both = placed(incoming, [[], [first]], half)
    assert (both.own_ratio, both.neighbour_ratio, both.neighbour_ids) == (0.1, 0.1, ("j1",))
    unknown = placed(incoming, [[first], [second]], half)
    assert (unknown.own_ratio, unknown.neighbour_ratio, unknown.neighbour_ids) == (None, None, ("j1", "j2"))


def test_the_formula_for_jobs_without_a_model_counts_as_unknown() -> None:
    incoming, other = residents(2, share=Share.ANY)
    guessed = store([], [pair("key-j0", "key-j1", 0.4, level=Level.FALLBACK), pair("key-j1", "key-j0", 0.1)])
    found = placed(incoming, [[other]], guessed)
    assert (found.own_ratio, found.neighbour_ratio) == (None, 0.1)


def test_two_jobs_whose_sure_prediction_doubtful_windows_contradict_share_on_trial_at_what_was_predicted() -> None:
    keys = ["key-j0", "key-j1"]
    jobs = [prediction(key, utilization_ratio=0.9, measured_micro_batch_sizes=(1,)) for key in keys]
    predictions = store(jobs, all_pairs(keys, 0.1))
    two = residents(2)
    assert placed(two[0], [two[1:]], predictions) == PlacementSlowdown(0.1, 0.1, ("j1",))
    predictions.observe_pair(keys[0], keys[1], "standin", 3.0, is_doubtful=True)
    assert placed(two[0], [two[1:]], predictions).is_on_trial
    # Fair turns of 0.9 and 0.9 would cost 0.81; what was predicted of this pair outranks them.
    assert placed(two[0], [two[1:]], predictions).own_ratio == 0.1
    assert sharing_obstacle(two[0], two[1:], gpu(), predictions) is None
    never_measured = store([prediction(key) for key in keys], all_pairs(keys, 0.1))
    never_measured.observe_pair(keys[0], keys[1], "standin", 3.0, is_doubtful=True)
    refused = sharing_obstacle(two[0], two[1:], gpu(), never_measured)
    assert refused is not None
    assert refused.code == "PAIR_UNKNOWN"
