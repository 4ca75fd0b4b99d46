"""The law of summed utilization is found where it holds, and judged on multiway co-locations only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.papers.multiway_colocation_law import fit_law, judge_law
from predictor_service.learning.learning_task import JobFacts, LearningTask
from tests.support.time_slicing_jobs import turn_taking_problem


def test_both_branches_are_fitted_and_one_that_was_not_measured_goes_on() -> None:
    law = fit_law(np.array([0.4, 0.8, 1.2, 2.0]), np.array([0.1, 0.2, 0.3 * 1.44, 1.2]))
    assert (law.linear, law.quadratic) == pytest.approx((0.25, 0.3))
    only_over = fit_law(np.array([1.2, 2.0]), np.array([0.3 * 1.44, 1.2]))
    assert (only_over.linear, only_over.quadratic) == pytest.approx((0.3, 0.3))


def _world() -> LearningTask:
    """Jobs of 60 % that slow each other down by a third of their summed utilization squared, three of them too."""
    pairs = turn_taking_problem(jobs=3, noise=0.0)

    def waiting(job: JobFacts) -> JobFacts:
        return dataclasses.replace(job, solo=dataclasses.replace(job.solo, utilization_ratio=0.6))

    jobs, others = tuple(map(waiting, pairs.jobs)), tuple((waiting(one),) for (one,) in pairs.others)
    return dataclasses.replace(
        pairs,
        measured=np.append(np.full(len(jobs), 1.2**2 / 3), 1.8**2 / 3),
        row_ids=(*pairs.row_ids, "group"),
        jobs=(*jobs, jobs[0]),
        others=(*others, (others[1][0], others[2][0])),
    )


def test_a_multiway_colocation_under_the_law_is_predicted_by_pairs_and_not_by_their_sum() -> None:
    figures = judge_law(_world())
    assert figures["crowds"] == 1
    assert figures["quadratic"] == pytest.approx(1 / 3, abs=1e-4)
    assert figures["law"] == {"slowdown_mean": 1.08, "mae": 0.0, "bias": 0.0, "busy_ratio_mean": 0.8654}
    assert figures["sum_of_pairs"] == {"slowdown_mean": 0.96, "mae": 0.12, "bias": -0.12, "busy_ratio_mean": 0.9184}


def test_without_multiway_colocations_only_the_fit_to_pairs_is_reported() -> None:
    figures = judge_law(turn_taking_problem(jobs=3))
    assert "law" not in figures
