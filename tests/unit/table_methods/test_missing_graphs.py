"""Rows without a graph are answered by what never saw one, and never called familiar."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import pytest

from predictor_service.evaluation.fresh_model import described_method
from predictor_service.evaluation.scoring import plan_rounds, predict_rounds
from predictor_service.learning.learning_task import JobFacts, LearningTask
from predictor_service.selection.targets import MEMORY, TARGETS, Target
from predictor_service.table_methods.missing_graphs import WithAndWithoutGraphs, find_missing_graphs, strip_graphs
from predictor_service.table_methods.raw_columns import learn_columns
from tests.support.cases import for_each
from tests.support.plain_method import FittedPlainMethod, PlainMethod
from tests.support.solo_learning_tasks import memory_problem, without_graphs
from tests.support.time_slicing_jobs import turn_taking_problem

_BOUNDS: Final = ("value", "lower_90", "upper_90", "upper_99")
_QUICK: Final = PlainMethod("architecture", candidate_names=("mean", "ridge"))
_SAFE: Final = WithAndWithoutGraphs(_QUICK)


@pytest.fixture(scope="module")
def holed() -> LearningTask:
    return without_graphs(memory_problem(architectures=12), every=5)


@for_each("target", TARGETS)
def test_every_target_is_learned_with_and_without_graphs(target: Target) -> None:
    assert isinstance(described_method(target, "family"), WithAndWithoutGraphs)


def test_a_row_without_a_graph_is_answered_as_if_no_job_had_one(holed: LearningTask) -> None:
    forecast, plain = (method.fit(holed, seed=0).predict(holed) for method in (_SAFE, _QUICK))
    bare = _QUICK.fit(strip_graphs(holed), seed=0).predict(strip_graphs(holed))
    lacks = find_missing_graphs(holed)
    assert 0 < lacks.sum() < len(holed)
    for name in _BOUNDS:
        assert np.array_equal(getattr(forecast, name)[lacks], getattr(bare, name)[lacks])
        assert np.array_equal(getattr(forecast, name)[~lacks], getattr(plain, name)[~lacks])
    assert not np.array_equal(forecast.value[lacks], plain.value[lacks])
    assert not forecast.in_domain[lacks].any()
    assert np.array_equal(forecast.in_domain[~lacks], plain.in_domain[~lacks])
    assert plain.in_domain[lacks].any()


def test_a_row_without_a_graph_is_answered_where_every_training_row_has_one() -> None:
    learning_task = memory_problem(architectures=8)
    asked = strip_graphs(learning_task.subset(range(6)))
    fitted = _SAFE.fit(learning_task, seed=0)
    bare = _QUICK.fit(strip_graphs(learning_task), seed=0)
    assert np.array_equal(fitted.predict(asked).value, bare.predict(asked).value)
    assert not fitted.predict(asked).in_domain.any()
    assert fitted.predict_each(asked).keys() == {candidate.name for candidate in fitted.candidates}


class Counting(PlainMethod):
    """Notes what it is taught."""

    def fit(self, learning_task: LearningTask, seed: int) -> FittedPlainMethod:
        taught.append(bool(find_missing_graphs(learning_task).all()))
        return super().fit(learning_task, seed)


taught: list[bool] = []


def test_only_the_fit_that_rows_need_is_made(holed: LearningTask) -> None:
    method = WithAndWithoutGraphs(Counting("architecture", candidate_names=("mean", "ridge")))
    lacks = find_missing_graphs(holed)
    for asked, needed in ((lacks, [True]), (~lacks, [False])):
        taught.clear()
        method.fit(holed, seed=0).predict(holed.subset(np.flatnonzero(asked)))
        assert taught == needed


def test_where_no_training_row_has_a_graph_rows_are_answered_by_what_they_have() -> None:
    learning_task = strip_graphs(memory_problem(architectures=8))
    forecast, bare = (method.fit(learning_task, seed=0).predict(learning_task) for method in (_SAFE, _QUICK))
    assert np.array_equal(forecast.value, bare.value)
    assert np.array_equal(forecast.in_domain, bare.in_domain)
    assert forecast.in_domain.any()


def test_a_slowdown_with_a_job_without_a_graph_is_out_of_domain() -> None:
    made = turn_taking_problem(jobs=6, families=3)

    def drawn(job: JobFacts) -> JobFacts:
        return dataclasses.replace(job, graph={"macs": float(job.batch)} if job.job_key != "job003" else {})

    jobs, others = tuple(drawn(job) for job in made.jobs), tuple((drawn(other),) for (other,) in made.others)
    learning_task = dataclasses.replace(made, jobs=jobs, others=others)
    method = WithAndWithoutGraphs(PlainMethod("random_pair", candidate_names=("mean", "ridge")))
    forecast = method.fit(learning_task, seed=0).predict(learning_task)
    lacks = find_missing_graphs(learning_task)
    assert lacks.sum() == 11
    assert not forecast.in_domain[lacks].any()
    assert forecast.in_domain[~lacks].any()


def test_the_scored_table_has_every_candidate_on_every_row(holed: LearningTask) -> None:
    rounds = plan_rounds(holed, "architecture", 3, 0)
    scored = predict_rounds(rounds, _SAFE, "architecture", 0, lambda line: None)
    assert sorted(scored.rows) == list(range(len(holed)))
    assert all(candidate.outer_mae is not None and candidate.outer_mae > 0 for candidate in scored.candidates)


def test_the_method_for_jobs_alone_never_calls_a_row_without_its_graph_familiar() -> None:
    learning_task = without_graphs(memory_problem(architectures=4), every=5)
    asked = learning_task.subset(np.flatnonzero(find_missing_graphs(learning_task)))
    forecast = described_method(MEMORY, "architecture").fit(learning_task, seed=0).predict(asked)
    assert np.isfinite([getattr(forecast, name) for name in _BOUNDS]).all()
    assert not forecast.in_domain.any()


def test_what_an_allocator_reserves_is_no_column_of_methods_that_were_judged_without_it() -> None:
    plain = memory_problem(architectures=6)
    jobs = tuple(
        dataclasses.replace(job, graph={**job.graph, "reserved_bytes_per_sample": float(place)})
        for place, job in enumerate(plain.jobs)
    )
    known = dataclasses.replace(plain, jobs=jobs)
    learned, table = (learn_columns(each, "architecture", with_graph=True) for each in (plain, known))
    assert np.array_equal(learned.table(plain), table.table(known))
