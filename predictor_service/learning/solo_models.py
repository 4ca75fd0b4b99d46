"""All candidates of a target of a job alone, fitted on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor_service.learning.problem import FloatArray, Problem
from predictor_service.learning.solo_candidates import UNTUNED, fit_candidates, predict_each
from predictor_service.learning.solo_columns import SoloColumns, learn_solo_columns
from predictor_service.learning.solo_physics import Physics, fit_physics
from predictor_service.learning.untuned_trees import UntunedTrees, fit_untuned_trees
from predictor_service.regressors.candidates import TABLE_CANDIDATES
from predictor_service.selection.folds import Fold


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoloModels:
    """What candidates learned from one set of rows.

    Attributes:
        physics: The anchor.
        columns: How a problem becomes a table.
        models: Candidates that correct physics, by name.
        untuned: Trees without an anchor; None where rows carry no choice.
        seen: Training values in the learned scale.
    """

    physics: Physics
    columns: SoloColumns
    models: Mapping[str, Any]
    untuned: UntunedTrees | None
    seen: FloatArray

    def table(self, problem: Problem) -> FloatArray:
        """Columns of the rows of a problem, as `at_batches` returns it."""
        return self.columns.table(problem, self.physics.anchor(problem))

    def encode_each(self, problem: Problem) -> dict[str, FloatArray]:
        """What every candidate answers, in the learned scale, by name."""
        anchor = self.physics.anchor(problem)
        table = self.columns.table(problem, anchor)
        values = predict_each(self.models, table, self.columns.published, self.seen)
        if self.untuned is not None:
            values[UNTUNED] = self.physics.encode(self.untuned.predict(problem), anchor)
        return values

    def decode_each(self, problem: Problem) -> dict[str, FloatArray]:
        """The same in the target's unit."""
        anchor = self.physics.anchor(problem)
        return {name: self.physics.decode(value, anchor) for name, value in self.encode_each(problem).items()}


def fit_models(problem: Problem, level: str, seed: int, names: Iterable[str]) -> SoloModels:
    """Fits candidates.

    Args:
        problem: Training rows, as `at_batches` returns them.
        level: What will be unseen, one of `problem.LEVELS`.
        seed: Of every candidate.
        names: Those of `TABLE_CANDIDATES`, and `UNTUNED`.
    """
    physics = fit_physics(problem)
    anchor = physics.anchor(problem)
    seen = physics.encode(problem.measured, anchor)
    columns = learn_solo_columns(problem, level, anchor)
    corrections = [name for name in names if name in TABLE_CANDIDATES]
    return SoloModels(
        physics=physics,
        columns=columns,
        models=fit_candidates(columns.table(problem, anchor), seen, seed, columns.published, corrections),
        untuned=fit_untuned_trees(problem, level, seed) if UNTUNED in names else None,
        seen=seen,
    )


def hold_out(
    problem: Problem, level: str, folds: Sequence[Fold], seed: int, names: Iterable[str]
) -> dict[str, FloatArray]:
    """What every candidate says of every row, in the target's unit, having learned everything without its group."""
    held_out: dict[str, FloatArray] = {}
    for fold in folds:
        models = fit_models(problem.subset(fold.train), level, seed, names)
        for name, values in models.decode_each(problem.subset(fold.test)).items():
            held_out.setdefault(name, np.full(len(problem), np.nan))[fold.test] = values
    return {name: values for name, values in held_out.items() if np.isfinite(values).all()}
