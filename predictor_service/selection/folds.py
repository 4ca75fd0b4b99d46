"""Folds that keep whole groups together: a model is judged on families that it has not seen, never on random rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

FOLDS_MAX: Final = 10
GROUPS_MIN: Final = 3

IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Row indices of one split; no group of `test` has a row in `train`."""

    train: IndexArray
    test: IndexArray


def grouped_folds(groups: Sequence[frozenset[str]], folds_max: int = FOLDS_MAX) -> list[Fold]:
    """Leaves out one group after the other; with many groups, several at a time.

    Args:
        groups: The groups of each row: the family of a job alone, the families of both jobs of a pair. A row is tested
            with each of its groups and trained on only when all of its groups are in.
        folds_max: Most folds, at least 2.

    Returns:
        At most `folds_max` folds with non-empty sides; empty when there are fewer than `GROUPS_MIN` groups.
    """
    names = sorted(set().union(*groups)) if groups else []
    if len(names) < GROUPS_MIN:
        return []
    sizes = Counter(name for members in groups for name in members)
    parts: list[set[str]] = [set() for _ in range(min(folds_max, len(names)))]
    loads = [0] * len(parts)
    for name in sorted(names, key=lambda name: (-sizes[name], name)):
        place = loads.index(min(loads))
        parts[place].add(name)
        loads[place] += sizes[name]
    folds = []
    for part in parts:
        held_out = np.array([not part.isdisjoint(members) for members in groups])
        if held_out.any() and not held_out.all():
            folds.append(Fold(np.flatnonzero(~held_out), np.flatnonzero(held_out)))
    return folds


def setting_folds(kinds: IndexArray, settings: IndexArray, folds_max: int = FOLDS_MAX) -> list[Fold]:
    """Leaves out settings of every kind of job, while other settings of the same kind stay.

    Args:
        kinds: Number of each row's kind.
        settings: Number of each row's kind with its settings.
        folds_max: Most folds, at least 2.

    Returns:
        At most `folds_max` folds; rows of kinds with one setting are in no test.
    """
    place = np.full(len(kinds), -1)
    for kind in np.unique(kinds):
        here = np.flatnonzero(kinds == kind)
        names, each = np.unique(settings[here], return_inverse=True)
        if len(names) > 1:
            place[here] = (each + kind) % folds_max  # kinds start at different folds, so that these are alike
    return [
        Fold(np.flatnonzero(place != part), np.flatnonzero(place == part))
        for part in range(folds_max)
        if (place == part).any()
    ]
