"""Rows of memory that no training step can have left."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from predictor_service.learning.failed_runs import FAILED, find_failed_runs, leave_out_failed_runs
from predictor_service.learning.learning_task import BoolArray, LearningTask
from predictor_service.table_methods.solo_columns import at_batches
from predictor_service.table_methods.solo_method import SoloMethod
from tests.support.few_candidates import few_trees
from tests.support.solo_learning_tasks import GIBIBYTE, memory_problem, utilization_problem, without_graphs


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_trees():
        yield


def broken(learning_task: LearningTask, every: int) -> tuple[LearningTask, BoolArray]:
    """The same rows; every n-th architecture never got past its weights, whatever the batch."""
    fails = np.array([int(job.architecture.removeprefix("net")) % every == 0 for job in learning_task.jobs])
    ended = np.array([1.5 * GIBIBYTE + 16 * job.graph["parameters"] for job in learning_task.jobs])
    return dataclasses.replace(learning_task, measured=np.where(fails, ended, learning_task.measured)), fails


def test_a_run_that_held_less_than_its_weights_and_what_backward_needs_has_failed() -> None:
    learning_task, fails = broken(memory_problem(size=3.0), every=4)
    found = find_failed_runs(at_batches(learning_task))
    large = np.array([job.batch == 128 for job in learning_task.jobs])
    assert found[fails & large].all()
    assert not found[~fails].any()


def test_runs_that_held_the_same_at_another_batch_failed_at_the_same_place() -> None:
    learning_task, fails = broken(memory_problem(size=3.0), every=4)
    small = np.array([job.batch == 8 for job in learning_task.jobs])
    alone = learning_task.subset(np.flatnonzero(fails & small))
    assert not find_failed_runs(at_batches(alone)).all()
    assert find_failed_runs(at_batches(learning_task))[fails & small].all()


def test_only_memory_of_training_jobs_with_a_graph_is_doubted() -> None:
    learning_task, _ = broken(memory_problem(), every=4)
    serving = [dataclasses.replace(job, labels={"mode": "infer"}) for job in learning_task.jobs]
    assert find_failed_runs(at_batches(learning_task)).any()
    assert not find_failed_runs(at_batches(dataclasses.replace(learning_task, jobs=tuple(serving)))).any()
    assert not find_failed_runs(without_graphs(learning_task, every=1)).any()
    assert not find_failed_runs(at_batches(utilization_problem())).any()


def test_failed_runs_are_left_out_and_counted() -> None:
    learning_task, fails = broken(memory_problem(size=3.0), every=4)
    left_out = Counter[str]()
    kept = leave_out_failed_runs(at_batches(learning_task), left_out)
    assert kept.row_ids == tuple(name for name, failed in zip(learning_task.row_ids, fails, strict=True) if not failed)
    assert left_out == {FAILED: fails.sum()}


def test_where_most_runs_seem_to_have_failed_the_graphs_are_doubted_and_all_rows_stay() -> None:
    learning_task, _ = broken(memory_problem(size=3.0), every=2)
    left_out = Counter[str]()
    assert find_failed_runs(at_batches(learning_task)).any()
    assert len(leave_out_failed_runs(at_batches(learning_task), left_out)) == len(learning_task)
    assert not left_out


def test_failed_runs_teach_the_value_and_not_the_bound() -> None:
    sound, unseen = memory_problem(size=3.0), memory_problem(seed=1, size=3.0)
    learning_task, fails = broken(sound, every=4)
    fitted = SoloMethod("architecture").fit(learning_task, seed=0)
    kept = SoloMethod("architecture").fit(learning_task.subset(np.flatnonzero(~fails)), seed=0)
    first, second = (each.sound.answer(at_batches(unseen), each.promise) for each in (fitted, kept))
    assert np.array_equal(first, second)
    assert not np.array_equal(fitted.predict(unseen).value, kept.predict(unseen).value)


def test_no_bound_promises_that_a_device_holds_more_than_it_has() -> None:
    learning_task = memory_problem(seed=3)
    fitted = SoloMethod("architecture").fit(learning_task, seed=0)
    capacity = 40.0 * GIBIBYTE
    larger = memory_problem(seed=3, size=2.0)
    forecast, promise = fitted.predict(larger), fitted.sound.answer(at_batches(larger), fitted.promise)
    fits = promise.value <= capacity
    assert (promise.upper_99[fits] > capacity).any()
    assert forecast.upper_99[fits].max() == capacity
    assert np.array_equal(forecast.upper_99[~fits], promise.value[~fits])
