"""Boosted trees with their library's own defaults on the columns that a set publishes: the usual first attempt.

It is the baseline of every evaluation, and one of the candidates of jobs alone, so that a method that chooses well
never loses to it by much. Quantities that span orders of magnitude are learned as logarithms, which makes it stronger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, LearningTask
from predictor_service.regressors.boosted_trees import BoostedTrees
from predictor_service.regressors.candidates import untuned_trees
from predictor_service.selection.targets import Target
from predictor_service.table_methods.raw_columns import RawColumns, learn_columns

_LARGEST: Final = 3e38


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UntunedTrees:
    """Fitted.

    Attributes:
        target: What is predicted.
        columns: That vary over the training rows.
        trees: None where no column does.
        mean: Of the training rows, the answer without columns.
    """

    target: Target
    columns: RawColumns
    trees: BoostedTrees | None
    mean: float

    def predict(self, learning_task: LearningTask) -> FloatArray:
        """Answers every row in the target's unit, shape (rows,)."""
        if self.trees is None:
            return np.full(len(learning_task), self.mean)
        return self.target.expand(self.trees.predict(_in_range(self.columns.table(learning_task))))


def fit_untuned_trees(learning_task: LearningTask, level: str, seed: int) -> UntunedTrees:
    """Learns from training rows.

    Args:
        learning_task: Training rows.
        level: What will be unseen, one of `learning_task.LEVELS`; see `raw_columns.learn_columns`.
        seed: Of the trees.
    """
    columns = learn_columns(learning_task, level, with_graph=False)
    trees = None
    if columns.names:
        trees = untuned_trees(seed).fit(
            _in_range(columns.table(learning_task)), learning_task.target.compress(learning_task.measured)
        )
    return UntunedTrees(
        target=learning_task.target, columns=columns, trees=trees, mean=float(learning_task.measured.mean())
    )


def _in_range(table: FloatArray) -> FloatArray:
    """Within the range of 32-bit numbers, which is what xgboost computes in."""
    return np.clip(table, -_LARGEST, _LARGEST)
