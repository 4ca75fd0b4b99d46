"""What three and more jobs on a GPU do to each other: the sum of pairs, or a law of summed utilization."""

from __future__ import annotations

from itertools import permutations

import pytest

from benchmarks.papers.summed_utilization import SummedUtilization
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth
from tests.support.cases import for_each
from tests.support.simulated_runs import ends_s, kind, run, trace_job, trace_of

LAW = SummedUtilization(linear=0.25, quadratic=0.25)


def test_the_law_is_linear_up_to_all_of_a_gpu_and_quadratic_above() -> None:
    assert LAW.slowdown_ratio(0.8) == pytest.approx(0.2)
    assert LAW.slowdown_ratio(1.0) == pytest.approx(0.25)
    assert LAW.slowdown_ratio(2.0) == pytest.approx(1.0)
    assert SummedUtilization(linear=0.5).slowdown_ratio(3.0) == 1.5


def test_a_pair_keeps_its_own_slowdown_and_a_larger_group_follows_the_law() -> None:
    kinds = {("a", EVERY_DEVICE): kind(utilization_ratio=0.7)}
    truth = GroundTruth(kinds=kinds, slowdown_ratio=0.49, multiway_law=LAW)
    assert truth.colocated_slowdown_ratio("a", ["a"], "gpu") == 0.49
    assert truth.colocated_slowdown_ratio("a", ["a"] * 3, "gpu") == pytest.approx(0.25 * 2.8**2)
    pairwise = GroundTruth(kinds=kinds, slowdown_ratio=0.49)
    assert pairwise.colocated_slowdown_ratio("a", ["a"] * 3, "gpu") == pytest.approx(3 * 0.49)


@for_each("utilization", [0.3, 0.5, 0.7, 0.95, 1.0])
def test_by_the_law_of_the_tables_no_group_of_jobs_computes_more_than_a_gpu_can(utilization: float) -> None:
    """The sum of pairs lets four jobs of 70 % compute 113 % of the time."""
    for jobs in range(2, 9):
        total = jobs * utilization
        assert total / (1.0 + LAW.slowdown_ratio(total)) <= 1.0


def test_four_jobs_on_a_gpu_end_later_by_the_law_than_by_the_sum_of_pairs() -> None:
    jobs = [trace_job(f"job-{number}", seconds=100) for number in range(4)]
    kinds = {"kind": kind(utilization_ratio=0.7, memory_bytes=1)}
    by_pairs = run(trace_of(*jobs, slowdown_ratio=0.49, kinds=kinds), policy="obp")
    by_law = run(trace_of(*jobs, slowdown_ratio=0.49, kinds=kinds, multiway_law=LAW), policy="obp")
    assert max(ends_s(by_pairs).values()) == pytest.approx(247.0)
    assert max(ends_s(by_law).values()) == pytest.approx(296.0)


def test_colocated_jobs_that_fill_the_gpu_exactly_lie_on_the_line_in_every_order() -> None:
    """0.56 + 0.34 + 0.1 is 1, though their binary fractions are not in every order."""
    ratios = {"a": 0.56, "b": 0.34, "c": 0.1}
    kinds = {(key, EVERY_DEVICE): kind(utilization_ratio=ratio) for key, ratio in ratios.items()}
    truth = GroundTruth(kinds=kinds, multiway_law=SummedUtilization(linear=0.5, quadratic=5.0))
    found = {truth.colocated_slowdown_ratio(victim, others, "gpu") for victim, *others in permutations(ratios)}
    assert found == {0.5}
