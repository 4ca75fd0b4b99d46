"""Boosted trees with their library's own defaults on the columns that a set publishes: what everybody tries first.

It is the baseline of every evaluation, and one of the candidates of jobs alone, so that a method that chooses well
never loses to it by much. Quantities that span orders of magnitude are learned as logarithms, which makes it stronger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.problem import FloatArray, Problem
from predictor_service.learning.raw_columns import RawColumns, learn_columns
from predictor_service.regressors.boosted_trees import BoostedTrees
from predictor_service.regressors.candidates import untuned_trees
from predictor_service.selection.targets import Target

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

    def predict(self, problem: Problem) -> FloatArray:
        """Answers every row in the target's unit, shape (rows,)."""
        if self.trees is None:
            return np.full(len(problem), self.mean)
        return self.target.expand(self.trees.predict(_in_range(self.columns.table(problem))))


def fit_untuned_trees(problem: Problem, level: str, seed: int) -> UntunedTrees:
    """Learns from training rows.

    Args:
        problem: Training rows.
        level: What will be unseen, one of `problem.LEVELS`; see `raw_columns.learn_columns`.
        seed: Of the trees.
    """
    columns = learn_columns(problem, level, with_graph=False)
    trees = None
    if columns.names:
        trees = untuned_trees(seed).fit(_in_range(columns.table(problem)), problem.target.compress(problem.measured))
    return UntunedTrees(target=problem.target, columns=columns, trees=trees, mean=float(problem.measured.mean()))


def _in_range(table: FloatArray) -> FloatArray:
    """Within the range of 32-bit numbers, which is what xgboost computes in."""
    return np.clip(table, -_LARGEST, _LARGEST)
