"""Which rows are held out together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor_service.errors import TrainingDataError
from predictor_service.evaluation.splits import hold_out

GROUPS = st.lists(st.frozensets(st.sampled_from("abcdefgh"), min_size=1, max_size=2), min_size=2, max_size=40)


@given(groups=GROUPS, folds=st.integers(2, 12), seed=st.integers(0, 5))
def test_no_group_is_on_both_sides_and_every_row_with_a_stranger_is_tested(
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
