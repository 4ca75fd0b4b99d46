"""Inner folds of the same kind as what will be unseen, and pairs that are observed of a new job before it is judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import IndexArray, LearningTask
from predictor_service.selection.folds import Fold

FOLDS_MAX: Final = 6
_FINER: Final = ("device", "family", "architecture", "job", "random_pair")


def inner_folds(learning_task: LearningTask, level: str, shots: int, seed: int) -> tuple[str, list[Fold]]:
    """Splits training rows as the rows to come will be split off.

    Args:
        learning_task: Training rows, each of one victim and one other job.
        level: What will be unseen, one of `learning_task.LEVELS`.
        shots: Pairs that will have been observed of every new job.
        seed: Of the order in which groups are dealt out.

    Returns:
        The level used, a finer one where the rows have too few groups, and the folds; a row that is not tested is
        trained on. No folds when no level has two groups.
    """
    for finer in _FINER[_FINER.index(level) :]:
        groups = learning_task.groups(finer)
        names = sorted(frozenset[str]().union(*groups))
        order = [names[place] for place in np.random.default_rng(seed).permutation(len(names))]
        parts = [set(order[start::FOLDS_MAX]) for start in range(min(FOLDS_MAX, len(order)))]
        folds = [fold for part in parts if (fold := _fold(learning_task, groups, part, shots, seed)) is not None]
        if len(folds) >= 2:
            return finer, folds
    return level, []


def observe_pairs(
    learning_task: LearningTask, new_rows: IndexArray, known_jobs: Collection[str], shots: int, seed: int
) -> IndexArray:
    """Chooses the first co-locations of every new job: it shares a GPU with known jobs, and both are measured.

    Args:
        learning_task: All rows.
        new_rows: Rows with a new job.
        known_jobs: Keys of the jobs that are not new.
        shots: Co-locations of each new job.
        seed: Of the choice.

    Returns:
        Those of `new_rows` that are observed, both directions of a pair where both were measured, ascending.
    """
    rows_of: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in new_rows:
        victim, others = learning_task.jobs[int(row)].job_key, learning_task.others[int(row)]
        for new, partner in ((victim, others[0].job_key), (others[0].job_key, victim)):
            if new not in known_jobs and partner in known_jobs:
                rows_of[new][partner].append(int(row))
    random = np.random.default_rng(seed)
    observed: set[int] = set()
    for new in sorted(rows_of):
        partners = sorted(rows_of[new])
        for place in random.permutation(len(partners))[:shots]:
            observed.update(rows_of[new][partners[int(place)]])
    return np.array(sorted(observed), dtype=np.intp)


def _fold(
    learning_task: LearningTask, groups: Sequence[frozenset[str]], part: set[str], shots: int, seed: int
) -> Fold | None:
    held_out = np.array([not part.isdisjoint(members) for members in groups])
    test, train = np.flatnonzero(held_out), np.flatnonzero(~held_out)
    if not len(test) or not len(train):
        return None
    if shots:
        rows = learning_task.subset(train)
        known = {job.job_key for job in (*rows.jobs, *(other for others in rows.others for other in others))}
        observed = observe_pairs(learning_task, test, known, shots, seed)
        test, train = np.setdiff1d(test, observed), np.union1d(train, observed)
    return Fold(train, test) if len(test) else None
