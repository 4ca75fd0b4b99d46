"""Horus by hand: Eq. 7-10 and Algorithm 1 of the paper on instances small enough for a pencil."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from scheduler_service.core.decisions import Hold, Start, unfolded
from scheduler_service.core.records import Share
from scheduler_service.policies.horus import Horus
from scheduler_service.policies.ordering.fair_queues import fair_order, k_medians, queue_weight, slots_of
from scheduler_service.policies.placement.horus_costs import Curve
from tests.support.scheduling import (
    GIB,
    all_pairs,
    gpu,
    job,
    memory,
    node,
    pending,
    prediction,
    running,
    store,
    view,
)


def starts_of(policy: Horus, **facts: object) -> dict[str, list[str]]:
    decisions = unfolded(policy.decide(view(**facts)))  # type: ignore[arg-type]
    return {one.job_id: [part.gpu_id for part in one.assignments] for one in decisions if isinstance(one, Start)}


def test_section_3_2_the_default_curve_bends_at_one_hundred_percent() -> None:
    curve = Curve(linear=(0.0, 0.5), quadratic=(0.0, 0.0, 0.5))
    assert curve.slowdown_ratio(0.6) == pytest.approx(0.3)
    assert curve.slowdown_ratio(1.0) == pytest.approx(0.5)
    assert curve.slowdown_ratio(2.0) == pytest.approx(2.0)


def test_equations_7_to_10_cost_of_a_second_job_worked_by_hand() -> None:
    """8 GiB GPU, 2 GiB and 0.5 in use, job of 2 GiB and 0.7: 0.5 * 4/8 + 0.5 * 0.5 * 1.2^2 = 0.25 + 0.36."""
    keys = ["a", "b"]
    known = store(
        [
            prediction("a", memory=memory(2), utilization_ratio=0.5),
            prediction("b", memory=memory(2), utilization_ratio=0.7),
        ],
        all_pairs(keys, 0.1),
    )
    seen = view(
        nodes=[node()],
        holding=[running(job("old", key="a"), ["n0.0"])],
        waiting=[pending(job("new", key="b"))],
        predictions=known,
        explain=True,
    )
    (start,) = Horus().decide(seen)
    assert isinstance(start, Start)
    assert start.candidates[0].cost == pytest.approx(0.61)
    assert start.reason.numbers["cost"] == pytest.approx(0.61)
    assert start.reason.numbers["slowdown_ratio"] == pytest.approx(0.1)


def test_equation_9_an_empty_gpu_still_has_the_fitted_line_as_cost() -> None:
    """0.5 * 2/8 + 0.5 * (0.5 * 0.4) = 0.125 + 0.1."""
    known = store([prediction("a", memory=memory(2), utilization_ratio=0.4)])
    seen = view(nodes=[node()], waiting=[pending(job("new", key="a"))], predictions=known, explain=True)
    (start,) = Horus().decide(seen)
    assert start.candidates[0].cost == pytest.approx(0.225)


def test_algorithm_1_line_16_takes_the_gpus_of_least_cost() -> None:
    keys = ["busy", "calm", "new"]
    known = store(
        [
            prediction("busy", memory=memory(2), utilization_ratio=0.9),
            prediction("calm", memory=memory(2), utilization_ratio=0.1),
            prediction("new", memory=memory(2), utilization_ratio=0.3),
        ],
        all_pairs(keys, 0.0),
    )
    facts = {
        "nodes": [node("n0", 3)],
        "holding": [running(job("r0", key="busy"), ["n0.0"]), running(job("r1", key="calm"), ["n0.1"])],
        "predictions": known,
    }
    assert starts_of(Horus(), waiting=[pending(job("j", key="new"))], **facts) == {"j": ["n0.2"]}
    assert starts_of(Horus(), waiting=[pending(job("j", key="new", gpus=2))], **facts) == {"j": ["n0.2", "n0.1"]}


def test_algorithm_1_lines_9_to_12_too_few_nodes_pass_the_capacity_check() -> None:
    facts = {"nodes": [node("n0", 2), node("n1", 2)], "waiting": [pending(job("j", gpus=6))]}
    (held,) = Horus().decide(view(**facts))  # type: ignore[arg-type]
    assert isinstance(held, Hold)
    assert held.reason.code == "GPUS_NOT_IN_CLUSTER"
    assert held.reason.numbers == {"gpus_needed": 6, "gpus_in_cluster": 4}


def test_section_4_2_3_eight_gpus_prefer_one_node_then_one_rack_before_cost() -> None:
    nodes = [
        node("a", 4, rack_id="r1"),
        node("b", 4, rack_id="r2"),
        node("c", 4, rack_id="r2"),
        node("d", 8, rack_id="r3"),
    ]
    wide = pending(job("wide", gpus=8))
    assert set(starts_of(Horus(), nodes=nodes, waiting=[wide])["wide"]) == {f"d.{index}" for index in range(8)}
    on_rack = starts_of(Horus(), nodes=nodes[:3], waiting=[wide])["wide"]
    assert {gpu_id[0] for gpu_id in on_rack} == {"b", "c"}


def test_section_4_2_2_weight_is_the_longer_of_length_and_median_wait_times_length() -> None:
    assert queue_weight(3, median_wait_s=0.0) == 3.0
    assert queue_weight(3, median_wait_s=5.0) == 15.0


def test_section_4_2_2_slots_follow_the_weights_and_no_queue_gets_more_than_it_holds() -> None:
    assert slots_of([30.0, 15.0, 0.0], [20, 20, 0], 15) == [10, 5, 0]
    assert slots_of([1.0, 1.0], [20, 1], 15) == [8, 1]


def test_algorithm_1_considers_every_job_once_the_longest_waiting_first() -> None:
    jobs = [pending(job(f"j{index}"), submitted_at_ms=index) for index in range(40)]
    clusters = np.array([index % 3 for index in range(40)])
    order = [one.request.job_id for one in fair_order(jobs, clusters, now_ms=10**6, k=3, slots=15)]
    assert sorted(order) == sorted(one.request.job_id for one in jobs)
    for queue in range(3):
        mine = [int(job_id[1:]) for job_id in order if int(job_id[1:]) % 3 == queue]
        assert mine == sorted(mine)


def test_line_2_similar_jobs_come_into_one_queue() -> None:
    small, large = [1, 0.1, 1, 1 * GIB], [8, 0.9, 1, 7 * GIB]
    clusters = k_medians(np.array([small, large, small, large, small]), 2)
    assert clusters[0] == clusters[2] == clusters[4] != clusters[1] == clusters[3]


def test_equation_9_the_curve_belongs_to_the_device_type() -> None:
    """The same load is cheaper on the newer device (Fig. 4a), so it goes there."""
    nodes = [node("old", [gpu("old.0", device="1080")]), node("new", [gpu("new.0", device="2080")])]
    curves = {
        "1080": {"linear": [0.0, 0.8], "quadratic": [0.0, 0.0, 0.8]},
        "2080": {"linear": [0.0, 0.4], "quadratic": [0.0, 0.0, 0.4]},
    }
    assert starts_of(Horus(curves=curves), nodes=nodes, waiting=[pending(job("j"))]) == {"j": ["new.0"]}


def sharing(share: Share = Share.SAFE, *, slowdown: float = 0.1, **changes: object) -> object:
    """One GPU with one running job that consents, and one that asks to join it."""
    known = store(
        [prediction("a", memory=memory(2)), prediction("b", memory=memory(2), **changes)],
        all_pairs(["a", "b"], slowdown),
    )
    facts = view(
        nodes=[node()],
        holding=[running(job("old", key="a", share=Share.ANY), ["n0.0"])],
        waiting=[pending(job("new", key="b", share=share))],
        predictions=known,
    )
    (decision,) = unfolded(Horus().decide(facts))
    return decision.reason.code


def test_consent_decides_which_jobs_share() -> None:
    assert sharing() == "STARTS_SHARED"
    assert sharing(slowdown=0.21) == "SLOWDOWN_TOO_HIGH"
    assert sharing(in_domain=False) == "OUT_OF_DOMAIN"
    assert sharing(Share.ANY, in_domain=False) == "STARTS_SHARED"
    assert sharing(Share.NEVER) == "SHARE_NOT_ALLOWED"


@pytest.mark.parametrize("last", [0.1, 0.2, 0.9])
def test_jobs_whose_utilizations_reach_the_limit_share_in_any_order_of_arrival(last: float) -> None:
    """0.2 + 0.1 + 0.9 is 1.2, though their binary fractions are not in every order."""
    ratios = {"a": 0.1, "b": 0.2, "c": 0.9}
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=ratio) for key, ratio in ratios.items()],
        all_pairs(list(ratios), 0.0),
    )
    *there, incoming_job = sorted(ratios, key=lambda key: ratios[key] == last)
    policy = Horus(utilization_max_ratio=1.2, max_jobs_per_gpu=3)
    for order in (there, there[::-1]):
        (decision,) = unfolded(
            policy.decide(
                view(
                    nodes=[node()],
                    holding=[running(job(f"old-{key}", key=key), ["n0.0"]) for key in order],
                    waiting=[pending(job("new", key=incoming_job))],
                    predictions=known,
                )
            )
        )
        assert decision.reason.code == "STARTS_SHARED"


def test_a_gpu_that_is_exactly_full_still_lies_on_the_line_of_the_curve() -> None:
    """0.56 + 0.34 + 0.1 is 1: the line gives 0.5, the curve above it would give 5."""
    ratios = {"a": 0.56, "b": 0.34, "c": 0.1}
    known = store(
        [prediction(key, memory=memory(1), utilization_ratio=ratio) for key, ratio in ratios.items()],
        all_pairs(list(ratios), 0.0),
    )
    curves = {"standin": {"linear": [0.0, 0.5], "quadratic": [0.0, 0.0, 5.0]}}
    policy = Horus(curves=curves, max_jobs_per_gpu=3, weight_memory=0.0, weight_utilization=1.0)
    for incoming_job, *there in permutations(ratios):
        seen = view(
            nodes=[node("n0", [gpu("n0.0", device="standin")])],
            holding=[running(job(f"old-{key}", key=key), ["n0.0"]) for key in there],
            waiting=[pending(job("new", key=incoming_job))],
            predictions=known,
        )
        (start,) = unfolded(policy.decide(seen))
        assert start.reason.numbers["cost"] == pytest.approx(0.5), incoming_job
