"""Which rows are held out together."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor_service.errors import TrainingDataError
from predictor_service.evaluation.leakage import FIGURES_MIN
from predictor_service.evaluation.scoring import plan_rounds
from predictor_service.evaluation.splits import hold_out
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import MeasuredProfiles
from predictor_service.selection.targets import MEMORY
from tests.support.invented_profiles import DEVICE, solo_row

GROUPS = st.lists(st.frozensets(st.sampled_from("abcdefgh"), min_size=1, max_size=2), min_size=2, max_size=40)


@given(groups=GROUPS, folds=st.integers(2, 12), seed=st.integers(0, 5))
def test_no_group_is_on_both_sides_and_every_row_with_an_unseen_group_is_tested(
    groups: list[frozenset[str]], folds: int, seed: int
) -> None:
    try:
        splits = hold_out(groups, folds, seed)
    except TrainingDataError:
        return
    for split in splits:
        trained = frozenset[str]().union(*(groups[row] for row in split.train))
        held_out = [groups[row] - trained for row in split.test]
        assert all(held_out), "a row is tested that has no group of its own"
        assert len(split.train) + len(split.test) == len(groups)
    names = frozenset[str]().union(*groups)
    if all(len(members) == 1 for members in groups) and len(names) > 1:
        tested = sorted(row for split in splits for row in split.test)
        assert tested == list(range(len(groups)))


def test_the_seed_deals_groups_out_differently_and_equally_again() -> None:
    groups = [frozenset({str(row)}) for row in range(40)]
    first, again, other = ([split.test.tolist() for split in hold_out(groups, 4, seed)] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("groups", [[], [frozenset({"a"})] * 5, [frozenset({"a", "b"})] * 5])
def test_rows_that_cannot_be_split_are_refused_with_a_remedy(groups: list[frozenset[str]]) -> None:
    with pytest.raises(TrainingDataError) as refusal:
        hold_out(groups, 5, 0)
    assert "--fold" in refusal.value.remedy


def zoo(**graph_of: int) -> LearningTask:
    """Models by name, each with the graph of this number, at two batches."""
    rows = [
        solo_row(
            run_id=f"{name}-{batch}", job_key=f"{name}-{batch}", architecture=name, family=name, batch=batch,
            features_json=json.dumps({
                "graph.peak_bytes": batch, **{f"graph.{k}_per_sample": number + k for k in range(FIGURES_MIN)}
            }),
        )
        for name, number in graph_of.items()
        for batch in (8, 16)
    ]  # fmt: skip
    return read_learning_task(MeasuredProfiles(name="x", solo=tuple(rows), pairs=()), MEMORY, DEVICE).learning_task


@pytest.mark.parametrize("level", ["architecture", "family"])
def test_a_graph_that_is_held_out_is_not_learned_from_under_another_name(level: str) -> None:
    for part in plan_rounds(zoo(deit=1, vit=1, swin=2, resnet=3), level, 4, 0):
        assert part.train is not None
        tested, learned = ({job.graph["0_per_sample"] for job in side.jobs} for side in (part.test, part.train))
        assert not tested & learned
        assert len(part.train) == (4 if tested == {1} else 6)


def test_a_graph_may_be_learned_from_at_another_batch_where_jobs_are_held_out() -> None:
    parts = plan_rounds(zoo(deit=1, vit=1, swin=2), "job", 6, 0)
    assert [len(part.train or ()) for part in parts] == [5] * 6


def test_few_equal_figures_make_no_duplicates() -> None:
    learning_task = zoo(deit=1, vit=1)
    few = tuple(dataclasses.replace(job, graph={"depth_per_sample": 1.0}) for job in learning_task.jobs)
    parts = plan_rounds(dataclasses.replace(learning_task, jobs=few), "family", 2, 0)
    assert [len(part.train or ()) for part in parts] == [2, 2]


def test_models_that_are_all_one_graph_cannot_be_split() -> None:
    with pytest.raises(TrainingDataError, match="one and the same graph"):
        plan_rounds(zoo(deit=1, vit=1), "family", 2, 0)
