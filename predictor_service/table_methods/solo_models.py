"""All candidates of a target of a job alone, fitted on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor_service.learning.learning_task import FloatArray, LearningTask
from predictor_service.regressors.candidates import TABLE_CANDIDATES
from predictor_service.selection.folds import Fold
from predictor_service.table_methods.analytical_estimate import AnalyticalModel, fit_analytical_model
from predictor_service.table_methods.solo_candidates import UNTUNED, fit_candidates, predict_each
from predictor_service.table_methods.solo_columns import SoloColumns, learn_solo_columns
from predictor_service.table_methods.untuned_trees import UntunedTrees, fit_untuned_trees


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoloModels:
    """What candidates learned from one set of rows.

    Attributes:
        analytical_model: The analytical estimate.
        columns: How a learning task becomes a table.
        models: Candidates that correct physics, by name.
        untuned: Trees without one; None where rows carry no choice.
        seen: Training values in the learned scale.
    """

    analytical_model: AnalyticalModel
    columns: SoloColumns
    models: Mapping[str, Any]
    untuned: UntunedTrees | None
    seen: FloatArray

    def table(self, learning_task: LearningTask) -> FloatArray:
        """Columns of the rows of a learning task, as `at_batches` returns it."""
        return self.columns.table(learning_task, self.analytical_model.analytical_estimate(learning_task))

    def encode_each(self, learning_task: LearningTask) -> dict[str, FloatArray]:
        """What every candidate answers, in the learned scale, by name."""
        analytical_estimate = self.analytical_model.analytical_estimate(learning_task)
        table = self.columns.table(learning_task, analytical_estimate)
        values = predict_each(self.models, table, self.columns.published, self.seen)
        if self.untuned is not None:
            values[UNTUNED] = self.analytical_model.encode(self.untuned.predict(learning_task), analytical_estimate)
        return values

    def decode_each(self, learning_task: LearningTask) -> dict[str, FloatArray]:
        """The same in the target's unit."""
        analytical_estimate = self.analytical_model.analytical_estimate(learning_task)
        return {
            name: self.analytical_model.decode(value, analytical_estimate)
            for name, value in self.encode_each(learning_task).items()
        }


def fit_models(learning_task: LearningTask, level: str, seed: int, names: Iterable[str]) -> SoloModels:
    """Fits candidates.

    Args:
        learning_task: Training rows, as `at_batches` returns them.
        level: What will be unseen, one of `learning_task.LEVELS`.
        seed: Of every candidate.
        names: Those of `TABLE_CANDIDATES`, and `UNTUNED`.
    """
    analytical_model = fit_analytical_model(learning_task)
    analytical_estimate = analytical_model.analytical_estimate(learning_task)
    seen = analytical_model.encode(learning_task.measured, analytical_estimate)
    columns = learn_solo_columns(learning_task, level, analytical_estimate)
    corrections = [name for name in names if name in TABLE_CANDIDATES]
    return SoloModels(
        analytical_model=analytical_model,
        columns=columns,
        models=fit_candidates(
            columns.table(learning_task, analytical_estimate), seen, seed, columns.published, corrections
        ),
        untuned=fit_untuned_trees(learning_task, level, seed) if UNTUNED in names else None,
        seen=seen,
    )


def hold_out(
    learning_task: LearningTask, level: str, folds: Sequence[Fold], seed: int, names: Iterable[str]
) -> dict[str, FloatArray]:
    """Every candidate's prediction for every row, in the target's unit, with its group left out of all learning."""
    held_out: dict[str, FloatArray] = {}
    for fold in folds:
        models = fit_models(learning_task.subset(fold.train), level, seed, names)
        for name, values in models.decode_each(learning_task.subset(fold.test)).items():
            held_out.setdefault(name, np.full(len(learning_task), np.nan))[fold.test] = values
    return {name: values for name, values in held_out.items() if np.isfinite(values).all()}
