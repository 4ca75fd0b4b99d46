"""The learning tasks that the benchmark of jobs alone scores."""

from __future__ import annotations

import pytest

from benchmarks.solo_learning_tasks import ABLATIONS, FAKE_TENSOR, TASKS, ablate, read_task
from predictor_service.learning.learning_task import LEVELS
from predictor_service.selection.targets import TARGETS
from tests.support.shared_data import shared_data
from tests.support.solo_learning_tasks import memory_problem


def test_every_task_asks_for_a_target_and_a_level_that_exist() -> None:
    for task in TASKS.values():
        assert task.target in TARGETS
        assert task.level in LEVELS


@pytest.mark.parametrize("group", ["what backward keeps", "all graph figures"])
def test_an_ablation_takes_away_its_columns_and_no_others(group: str) -> None:
    learning_task = memory_problem(architectures=2)
    before, after = set(learning_task.jobs[0].graph), set(ablate(learning_task, group).jobs[0].graph)
    assert before - after == {name for name in before if ABLATIONS[group](f"graph.{name}")}
    assert after < before


@pytest.mark.endurance
def test_without_the_fake_tensor_columns_neither_side_sees_them() -> None:
    learning_task = read_task(TASKS["memory, timm, unseen model"], shared_data("gpumemnet").parent)
    if not len(learning_task):
        pytest.skip("datasets/timm_features has no model of the memory set")
    assert not any(name.startswith(FAKE_TENSOR) for job in learning_task.jobs for name in job.raw)
    assert all(
        {"params_m", "fwd_gmacs", "fwd_mactivations", "batch_size"} <= set(job.raw) for job in learning_task.jobs
    )


@pytest.mark.endurance
def test_utilization_rows_are_those_that_succeeded_with_a_whole_context() -> None:
    learning_task = read_task(TASKS["utilization, cnn, unseen architecture"], shared_data("gpumemnet").parent)
    assert len(learning_task) == 537
    assert len({job.architecture for job in learning_task.jobs}) == 7
