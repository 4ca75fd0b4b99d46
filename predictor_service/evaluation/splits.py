"""Which rows are held out together. No group is ever on both sides of a split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.errors import TrainingDataError
from predictor_service.learning.learning_task import IndexArray

NO_FOLDS: Final = "none"
FOLDS_MAX: Final[Mapping[str, int]] = {"random_pair": 5, "job": 8, "architecture": 8, "family": 10, "device": 10}
"""Folds unless asked otherwise; fewer groups than folds are left out one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Row indices of one split.

    Attributes:
        train: Rows of which no group is held out.
        test: Rows of which any group is held out.
    """

    train: IndexArray
    test: IndexArray


def hold_out(groups: Sequence[frozenset[str]], folds: int, seed: int) -> list[Split]:
    """Leaves every group out once, several at a time where there are more groups than folds.

    Args:
        groups: Of each row; a row with two groups is tested with each of them.
        folds: Most splits, at least 2.
        seed: Of the order in which groups of equal size are dealt out.

    Raises:
        TrainingDataError: There are fewer than two groups, or no split leaves rows on both sides.
    """
    names = sorted(frozenset[str]().union(*groups))
    if len(names) < 2:
        raise TrainingDataError(
            f"{len(groups)} rows of {len(names)} group{'s' if len(names) != 1 else ''} cannot be split",
            remedy="choose a finer --fold rule, give more data, or score --fold none with --train and --test",
        )
    sizes = Counter(name for members in groups for name in members)
    order = [names[place] for place in np.random.default_rng(seed).permutation(len(names))]
    parts: list[set[str]] = [set() for _ in range(min(folds, len(names)))]
    loads = [0] * len(parts)
    for name in sorted(order, key=lambda name: -sizes[name]):
        place = loads.index(min(loads))
        parts[place].add(name)
        loads[place] += sizes[name]
    splits = [_split(groups, part) for part in parts]
    usable = [split for split in splits if len(split.train) and len(split.test)]
    if not usable:
        raise TrainingDataError(
            "every row belongs to every part, so nothing is left to learn from",
            remedy="choose a finer --fold rule, e.g. random_pair",
        )
    return usable


def _split(groups: Sequence[frozenset[str]], part: set[str]) -> Split:
    held_out = np.array([not part.isdisjoint(members) for members in groups])
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out))
