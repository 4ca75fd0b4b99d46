"""OJPP's workloads and figures: what is drawn, what a placement is worth, and the bound next to it."""

from __future__ import annotations

import pytest

from benchmarks.papers import ojpp
from benchmarks.papers.ojpp_workload import (
    draw_workload,
    gpus_saved_ratio,
    measured_workload,
    performance_ratio,
    placement_on_fewest,
    slowdowns_of,
    workload_of,
)
from scheduler_service.policies.ojpp import Ojpp
from tests.support.packing import Limits, Packed, placement_of, violations

MATRIX = {("a", "a"): 0.1, ("a", "b"): 0.5, ("b", "a"): 0.25, ("b", "b"): 0.0}


def two_jobs(**changes: float) -> tuple[Packed, Packed]:
    return Packed(name="one", workers=2, p=0.2, **changes), Packed(name="two", workers=1, p=0.2, **changes)


def test_the_numbers_that_the_text_states_are_in_every_matrix() -> None:
    for seed in range(5):
        matrix = draw_workload("mixed", seed).matrix
        assert (matrix["resnet", "vgg19"], matrix["vgg19", "resnet"], matrix["lenet", "lstm"]) == (1.22, 0.187, 0.18)


def test_workloads_are_as_the_paper_describes_them() -> None:
    workload = draw_workload("mixed", 3)
    assert len(workload.types) == 20
    assert {one.workers for one in workload.instance.jobs} <= set(range(1, 11))
    high = {workload.types[one.name] for one in workload.instance.jobs if one.p > 0.2}
    assert high <= {"lenet", "lstm"}
    assert set(draw_workload("i_high", 3).types.values()) == {"resnet"}


def test_all_kinds_of_one_seed_meet_the_same_matrix_and_seeds_do_not() -> None:
    assert draw_workload("mixed", 1).matrix == draw_workload("average", 1).matrix
    assert draw_workload("mixed", 1).matrix != draw_workload("mixed", 2).matrix
    assert draw_workload("mixed", 1) == draw_workload("mixed", 1)


def test_no_job_can_share_with_resnet_where_it_is_lonely() -> None:
    matrix = draw_workload("mixed", 1, lonely=True).matrix
    assert min(ratio for (victim, _), ratio in matrix.items() if victim == "resnet") > 0.2


def test_a_job_is_as_slow_as_its_slowest_worker() -> None:
    workload = workload_of(two_jobs(), {"one": "a", "two": "b"}, MATRIX)
    placement = {"one": ["g0", "g1"], "two": ["g1"]}
    slowdowns = slowdowns_of(workload, placement)
    assert slowdowns == {"one": 0.5, "two": 0.25}
    assert performance_ratio(slowdowns) == pytest.approx((1 / 1.5 + 1 / 1.25) / 2)
    assert gpus_saved_ratio(workload, placement) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("theta_max", "theta_diff", "saved"), [(0.5, 0.5, 1 / 3), (0.4, 0.5, 0.0), (0.5, 0.4, 0.0)])
def test_the_fewest_gpus_keep_the_limits_too(theta_max: float, theta_diff: float, saved: float) -> None:
    workload = workload_of(two_jobs(), {"one": "a", "two": "b"}, MATRIX)
    best = placement_on_fewest(workload, tau_max=0.1, theta_max=theta_max, theta_diff=theta_diff)
    assert gpus_saved_ratio(workload, best) == pytest.approx(saved)


def test_three_share_where_their_peaks_seldom_coincide() -> None:
    names = ("one", "two", "three")
    workload = workload_of([Packed(name=name, p=0.1) for name in names], dict.fromkeys(names, "b"), MATRIX)
    best = placement_on_fewest(workload, tau_max=0.1, theta_max=0.5, theta_diff=0.1)
    assert gpus_saved_ratio(workload, best) == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(2))
def test_ojpp_keeps_its_limits_and_needs_no_fewer_gpus_than_the_fewest(seed: int) -> None:
    workload = draw_workload("mixed", seed)
    placement = placement_of(workload.instance, ojpp.OJPP.decide(workload.instance.view()))
    limits = Limits(tau_max=0.1, theta_max=0.2, theta_diff=0.1)
    assert violations(workload.instance, placement, limits) == []
    best = placement_on_fewest(workload, tau_max=0.1, theta_max=0.2, theta_diff=0.1)
    assert violations(workload.instance, best, limits) == []
    assert gpus_saved_ratio(workload, placement) <= gpus_saved_ratio(workload, best) + 1e-9


def test_pairs_that_were_not_measured_are_filled_from_those_that_were() -> None:
    workload = measured_workload(0)
    kinds = {victim for victim, _ in workload.matrix}
    assert len(workload.matrix) == len(kinds) ** 2 >= 100
    assert min(workload.matrix.values()) >= 0.0


@pytest.mark.endurance
def test_rows_say_whether_the_bar_is_held() -> None:
    rows = ojpp.frontier(1)
    judged = [row for row in rows if "is_held" in row]
    assert [row["bar"] for row in judged] == [ojpp.PERFORMANCE_MIN_PERCENT, ojpp.SAVED_MIN_PERCENT]
    assert len(rows) == 24


def test_a_policy_with_a_wrong_matrix_still_suffers_the_true_one() -> None:
    workload = workload_of(two_jobs(), {"one": "a", "two": "b"}, MATRIX)
    predicted = workload.predicting(dict.fromkeys(MATRIX, 0.0))
    placed = ojpp.Outcome(workload, Ojpp(compute_requirement="zero"), assumed=predicted)
    assert placed.saved_percent == pytest.approx(100 / 3)
    assert placed.slowdowns == {"one": 0.5, "two": 0.25}
