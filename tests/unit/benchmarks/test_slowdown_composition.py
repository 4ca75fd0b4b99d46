"""The comparison of ways to compose slowdowns finds the way in which a world composes them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.slowdown_composition import CHOSEN, LEARNED, WAYS, compare_compositions
from predictor_service.features.slowdown_composition import COMPOSITIONS
from predictor_service.features.time_slicing import compose_time_slices
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from tests.support.time_slicing_jobs import turn_taking_problem

_WORLDS: dict[str, Callable[[FloatArray], float]] = {
    "sum": lambda pairs: float(pairs[0, 1:].sum()),
    "product": lambda pairs: float(np.prod(1.0 + pairs[0, 1:]) - 1.0),
    "worst": lambda pairs: float(pairs[0, 1:].max()),
    "turns": lambda pairs: float(compose_time_slices(np.full(3, 0.6), pairs)[0]),
}


def _waiting(job: JobFacts) -> JobFacts:
    return dataclasses.replace(job, solo=dataclasses.replace(job.solo, utilization_ratio=0.6))


def _with_multiway(way: str, jobs: int, groups: int) -> LearningTask:
    pairs = turn_taking_problem(jobs=jobs, noise=0.0)
    pairs = dataclasses.replace(
        pairs,
        jobs=tuple(_waiting(job) for job in pairs.jobs),
        others=tuple((_waiting(one),) for (one,) in pairs.others),
    )
    facts = [pairs.jobs[jobs * place] for place in range(jobs)]
    matrix = pairs.measured.reshape(jobs, jobs)
    chosen = list(itertools.combinations(range(jobs), 3))[:groups]
    measured = [_WORLDS[way](matrix[np.ix_(colocation, colocation)]) for colocation in chosen]
    return dataclasses.replace(
        pairs,
        measured=np.append(pairs.measured, measured),
        row_ids=(*pairs.row_ids, *(f"group{place}" for place in range(len(chosen)))),
        jobs=(*pairs.jobs, *(facts[colocation[0]] for colocation in chosen)),
        others=(*pairs.others, *((facts[colocation[1]], facts[colocation[2]]) for colocation in chosen)),
    )


@pytest.mark.parametrize("way", _WORLDS)
def test_the_way_of_the_world_has_no_error(way: str) -> None:
    figures = compare_compositions(_with_multiway(way, jobs=4, groups=1))
    errors = {name: figures[name]["mae"] for name in (*COMPOSITIONS, "turns")}  # type: ignore[index]
    assert figures["rows"] == figures["crowds"] == 1
    assert errors[way] == pytest.approx(0.0, abs=1e-4)
    assert all(error > 0.05 for name, error in errors.items() if name != way)


def test_one_multiway_colocation_fits_no_parameter() -> None:
    figures = compare_compositions(_with_multiway("sum", jobs=4, groups=1))
    assert set(WAYS) <= set(figures)
    assert not {CHOSEN, *LEARNED} & set(figures)


def test_the_choice_falls_on_the_generating_rule_by_other_colocations() -> None:
    figures = compare_compositions(_with_multiway("worst", jobs=5, groups=6))
    assert figures[CHOSEN]["mae"] == pytest.approx(0.0, abs=1e-4)  # type: ignore[index]


def test_a_learned_number_has_not_seen_its_own_colocation() -> None:
    learning_task = _with_multiway("sum", jobs=5, groups=6)
    wild = learning_task.measured.copy()
    wild[-1] *= 1.8
    figures = compare_compositions(dataclasses.replace(learning_task, measured=wild))
    off = 0.8 / 1.8 * wild[-1] / 6
    # Five groups say that the factor is 1; the sixth, which says 1.8, is answered by them and misses all of its excess.
    assert figures["sum, learned factor"]["mae"] == pytest.approx(off, rel=1e-3)  # type: ignore[index]


def test_without_multiway_colocations_there_is_nothing_to_compare() -> None:
    assert compare_compositions(turn_taking_problem(jobs=3)) == {"rows": 0, "crowds": 0}
