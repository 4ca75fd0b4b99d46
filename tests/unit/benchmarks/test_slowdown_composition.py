"""The comparison of ways to compose slowdowns finds the way in which a world composes them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.slowdown_composition import compare_compositions
from predictor_service.features.slowdown_composition import COMPOSITIONS
from predictor_service.learning.problem import Problem
from tests.support.turn_taking_world import turn_taking_problem


def _with_crowds(way: str) -> Problem:
    pairs = turn_taking_problem(jobs=4, noise=0.0)
    of_pair = {
        (job.job_key, others[0].job_key): float(measured)
        for job, others, measured in zip(pairs.jobs, pairs.others, pairs.measured, strict=True)
    }
    job, first, second = pairs.jobs[0], pairs.others[1][0], pairs.others[2][0]
    beside = np.array([of_pair[job.job_key, other.job_key] for other in (first, second)])
    measured = {"sum": beside.sum(), "product": np.prod(1.0 + beside) - 1.0, "worst": beside.max()}[way]
    return dataclasses.replace(
        pairs,
        measured=np.append(pairs.measured, measured),
        row_ids=(*pairs.row_ids, "crowd"),
        jobs=(*pairs.jobs, job),
        others=(*pairs.others, (first, second)),
    )


@pytest.mark.parametrize("way", COMPOSITIONS)
def test_the_way_of_the_world_has_no_error(way: str) -> None:
    figures = compare_compositions(_with_crowds(way))
    errors = {name: figures[name]["mae"] for name in COMPOSITIONS}  # type: ignore[index]
    assert figures["crowds"] == 1
    assert errors[way] == 0.0
    assert all(error > 0.1 for name, error in errors.items() if name != way)


def test_without_crowds_there_is_nothing_to_compare() -> None:
    assert compare_compositions(turn_taking_problem(jobs=3)) == {"crowds": 0}
