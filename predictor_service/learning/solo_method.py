"""Utilization, activity, memory and step time of a job alone: physics, a learned correction, honest intervals.

Nested by construction: candidates are compared, and intervals calibrated, on folds inside the rows that `fit` is
given, held out at the same level as what will be unseen. The error on other rows is never the error that chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from predictor_service.learning.problem import CandidateResult, FloatArray, Forecast, Problem
from predictor_service.learning.solo_candidates import CANDIDATES, CONSTANT, fit_candidates, predict_each
from predictor_service.learning.solo_columns import SoloColumns, at_batches, learn_solo_columns
from predictor_service.learning.solo_physics import Physics, fit_physics
from predictor_service.selection.domain import TrainingDomain, learn_domain
from predictor_service.selection.folds import Fold, grouped_folds
from predictor_service.selection.local_bounds import LocalBounds, learn_bounds

INNER_FOLDS_MAX: Final = 6
_ROWS_MIN: Final = 12
_COARSEST_FIRST: Final = ("family", "architecture", "job")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSolo:
    """What was learned; see `problem.FittedMethod`.

    Attributes:
        selected: Name of the winner.
        candidates: Scored table, best first.
        physics: The anchor.
        columns: How a problem becomes a table.
        models: All candidates fitted on all rows; the constant alone where rows carry no choice.
        seen: Training values in the learned scale.
        bounds: Of the winner.
        domain: Region of the training rows.
    """

    selected: str
    candidates: Sequence[CandidateResult]
    physics: Physics
    columns: SoloColumns
    models: Mapping[str, Any]
    seen: FloatArray
    bounds: LocalBounds
    domain: TrainingDomain

    def predict(self, problem: Problem) -> Forecast:
        """Predicts every row with intervals; see `problem.FittedMethod`."""
        problem = at_batches(problem)
        anchor = self.physics.anchor(problem)
        table = self.columns.table(problem, anchor)
        value = predict_each(self.models, table, self.columns.published, self.seen)[self.selected]
        half_width = self.bounds.interval(table, 0.9)
        upper = value + np.maximum(self.bounds.upper(table, 0.99), half_width)
        return Forecast(
            value=self.physics.decode(value, anchor),
            lower_90=self.physics.decode(value - half_width, anchor),
            upper_90=self.physics.decode(value + half_width, anchor),
            upper_99=self.physics.decode(upper, anchor),
            in_domain=self.domain.contains(table.astype(np.float32)),
        )

    def predict_each(self, problem: Problem) -> Mapping[str, FloatArray]:
        """Predictions of every candidate by name, for the scored table of an evaluation."""
        problem = at_batches(problem)
        anchor = self.physics.anchor(problem)
        table = self.columns.table(problem, anchor)
        values = predict_each(self.models, table, self.columns.published, self.seen)
        return {name: self.physics.decode(value, anchor) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class SoloMethod:
    """See the module.

    Attributes:
        level: What will be unseen, one of `problem.LEVELS`; inner folds hold out the same.
        name: For the report.
    """

    level: str
    name: str = "cotenant"

    def fit(self, problem: Problem, seed: int) -> FittedSolo:
        """Learns from all rows of a problem; see `problem.Method`."""
        problem = at_batches(problem)
        groups, folds = inner_folds(problem, self.level)
        physics = fit_physics(problem)
        anchor = physics.anchor(problem)
        encoded = physics.encode(problem.measured, anchor)
        columns = learn_solo_columns(problem, self.level, anchor)
        table = columns.table(problem, anchor)
        held_out = _hold_out(problem, self.level, folds, seed) if folds else _nothing_held_out(problem)
        errors = {name: physics.encode(values, anchor) - encoded for name, values in held_out.items()}
        order = sorted(held_out, key=lambda name: float(np.abs(errors[name]).mean()))
        return FittedSolo(
            selected=order[0],
            candidates=tuple(_result(name, held_out[name], problem.measured) for name in order),
            physics=physics,
            columns=columns,
            models=fit_candidates(table, encoded, seed, columns.published, CANDIDATES if folds else (CONSTANT,)),
            seen=encoded,
            bounds=learn_bounds(table, -errors[order[0]], groups, seed),
            domain=learn_domain(table.astype(np.float32), groups),
        )


def inner_folds(problem: Problem, level: str) -> tuple[Sequence[frozenset[str]], list[Fold]]:
    """Folds inside the training rows at the level asked for, or at the coarsest finer one that has enough groups."""
    start = _COARSEST_FIRST.index(level) if level in _COARSEST_FIRST else 0
    for finer in _COARSEST_FIRST[start:]:
        groups = problem.groups(finer)
        folds = grouped_folds(groups, folds_max=INNER_FOLDS_MAX) if len(problem) >= _ROWS_MIN else []
        if folds:
            return groups, folds
    return problem.groups("job"), []


def _hold_out(problem: Problem, level: str, folds: Sequence[Fold], seed: int) -> dict[str, FloatArray]:
    """What every candidate says of every row, in the target's unit, having learned everything without its group."""
    held_out: dict[str, FloatArray] = {}
    for fold in folds:
        train, test = problem.subset(fold.train), problem.subset(fold.test)
        physics = fit_physics(train)
        anchor, test_anchor = physics.anchor(train), physics.anchor(test)
        columns = learn_solo_columns(train, level, anchor)
        encoded = physics.encode(train.measured, anchor)
        models = fit_candidates(columns.table(train, anchor), encoded, seed, columns.published)
        unseen = columns.table(test, test_anchor)
        for name, values in predict_each(models, unseen, columns.published, encoded).items():
            held_out.setdefault(name, np.zeros(len(problem)))[fold.test] = physics.decode(values, test_anchor)
    return held_out


def _nothing_held_out(problem: Problem) -> dict[str, FloatArray]:
    """Rows that carry no choice: the typical correction answers, and its own errors on the rows must do."""
    physics = fit_physics(problem)
    anchor = physics.anchor(problem)
    middle = np.full(len(problem), float(np.median(physics.encode(problem.measured, anchor))))
    return {CONSTANT: physics.decode(middle, anchor)}


def _result(name: str, predicted: FloatArray, measured: FloatArray) -> CandidateResult:
    return CandidateResult(name=name, inner_mae=float(np.abs(predicted - measured).mean()))
