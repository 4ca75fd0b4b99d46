"""Baselines do what their names say, and leaks are found."""

import dataclasses
import json

import numpy as np
import pytest

from predictor_service.evaluation.baselines import BASELINES
from predictor_service.evaluation.leakage import remove_leaks
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY, SLOWDOWN, UTILIZATION, Target
from predictor_service.table_methods.raw_columns import learn_columns
from tests.support.invented_profiles import DEVICE, pair_row, pair_rows, solo_row, solo_rows


def problem_of(target: Target = MEMORY, **changes: object) -> LearningTask:
    profiles = MeasuredProfiles(name="invented", solo=tuple(solo_rows(**changes)), pairs=())  # type: ignore[arg-type]
    return read_learning_task(profiles, target, DEVICE).learning_task


def pairs_problem() -> LearningTask:
    """Slowdowns that are exactly victim effect times other effect on the shared time."""
    jobs = [solo_row(job_key=str(place), architecture=f"a{place}") for place in range(8)]
    pairs = [
        pair_row(jobs[victim], jobs[other], slowdown_ratio=(1 + 0.05 * victim) * (1 + 0.1 * other) - 1)
        for victim in range(8)
        for other in range(8)
    ]
    return read_learning_task(
        MeasuredProfiles(name="x", solo=tuple(jobs), pairs=tuple(pairs)), SLOWDOWN, DEVICE
    ).learning_task


def split(learning_task: LearningTask) -> tuple[LearningTask, LearningTask]:
    rows = np.random.default_rng(0).permutation(len(learning_task))
    return learning_task.subset(rows[len(rows) // 4 :]), learning_task.subset(rows[: len(rows) // 4])


def error(name: str, learning_task: LearningTask) -> float | None:
    train, test = split(learning_task)
    values = BASELINES[name](train, test, "random_pair", 0)
    return None if values is None else float(np.abs(values - test.measured).mean())


def test_the_mean_is_that_of_the_training_rows() -> None:
    train, test = split(problem_of())
    values = BASELINES["mean"](train, test, "job", 0)
    assert values == pytest.approx(np.full(len(test), train.measured.mean()))


def test_the_additive_table_recovers_slowdowns_that_are_additive() -> None:
    learning_task = pairs_problem()
    additive, mean = error("additive", learning_task), error("mean", learning_task)
    assert additive is not None
    assert mean is not None
    assert additive < 0.25 * mean
    assert error("additive", problem_of()) is None


def test_the_roofline_answers_only_where_every_row_has_its_figures() -> None:
    assert error("roofline", problem_of(UTILIZATION)) is not None
    assert error("roofline", problem_of(MEMORY)) is None
    assert error("roofline", pairs_problem()) is not None


def test_gradient_boosting_learns_from_what_the_set_publishes_alone() -> None:
    learning_task = problem_of(extra_features={"graph.answer": 1.0})
    boosted, mean = error("gradient_boosting", learning_task), error("mean", learning_task)
    assert boosted is not None
    assert mean is not None
    assert boosted < 0.5 * mean
    assert not any(name.startswith("graph.") for name in learn_columns(learning_task, "job", with_graph=False).names)


def test_a_label_that_only_names_the_held_out_group_is_no_column() -> None:
    rows = solo_rows()
    named = [dataclasses.replace(row, features_json=json.dumps({"set.model": row.architecture})) for row in rows]
    learning_task = read_learning_task(
        MeasuredProfiles(name="x", solo=tuple(named), pairs=()), MEMORY, DEVICE
    ).learning_task
    unseen = learn_columns(learning_task, "architecture", with_graph=True).names
    seen = learn_columns(learning_task, "random_pair", with_graph=True).names
    assert not any(name.startswith("model=") for name in unseen)
    assert any(name.startswith("model=") for name in seen)
    assert not any("key-" in name for name in seen), "a job's key is no feature"


def test_a_published_column_that_is_the_answer_in_another_unit_is_taken_out() -> None:
    rows = [
        dataclasses.replace(
            row, features_json=json.dumps({"set.mib": row.memory_peak_bytes / 2**20, "set.batch": row.batch})
        )
        for row in solo_rows()
        if row.memory_peak_bytes is not None
    ]
    learning_task = read_learning_task(
        MeasuredProfiles(name="x", solo=tuple(rows), pairs=()), MEMORY, DEVICE
    ).learning_task
    cleaned, leaks = remove_leaks(learning_task)
    assert leaks == ("mib",)
    assert all(set(job.raw) == {"batch"} for job in cleaned.jobs)


def test_columns_that_do_not_leak_stay() -> None:
    learning_task = problem_of()
    cleaned, leaks = remove_leaks(learning_task)
    assert leaks == ()
    assert cleaned is learning_task


def test_pairs_of_published_jobs_can_be_learned() -> None:
    solo = solo_rows()[3::5]
    profiles = MeasuredProfiles(name="x", solo=tuple(solo), pairs=tuple(pair_rows(solo)))
    learning_task = read_learning_task(profiles, SLOWDOWN, DEVICE).learning_task
    boosted, mean = error("gradient_boosting", learning_task), error("mean", learning_task)
    assert boosted is not None
    assert mean is not None
    assert boosted < 0.4 * mean
