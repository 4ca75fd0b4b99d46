"""Utilization, activity, memory and step time of a job alone: physics, a learned correction, honest intervals.

Nested by construction: candidates are compared, and intervals calibrated, on folds inside the rows that `fit` is
given, held out at the same level as what will be unseen. The error on other rows is never the error that chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from predictor_service.learning.failed_runs import find_failed_runs
from predictor_service.learning.problem import CandidateResult, FloatArray, Forecast, Problem
from predictor_service.learning.solo_candidates import CANDIDATES, CONSTANT, fit_candidates, predict_each
from predictor_service.learning.solo_columns import SoloColumns, at_batches, learn_solo_columns
from predictor_service.learning.solo_physics import Physics, fit_physics, largest_possible
from predictor_service.selection.domain import TrainingDomain, learn_domain
from predictor_service.selection.folds import Fold, grouped_folds
from predictor_service.selection.local_bounds import LocalBounds, learn_bounds

INNER_FOLDS_MAX: Final = 6
_ROWS_MIN: Final = 12
_COARSEST_FIRST: Final = ("family", "architecture", "job")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedRows:
    """What one set of rows taught.

    Attributes:
        candidates: Scored table, best first.
        physics: The anchor.
        columns: How a problem becomes a table.
        models: All candidates fitted on all rows; the constant alone where rows carry no choice.
        seen: Training values in the learned scale.
        bounds: Of the winner.
    """

    candidates: Sequence[CandidateResult]
    physics: Physics
    columns: SoloColumns
    models: Mapping[str, Any]
    seen: FloatArray
    bounds: LocalBounds

    @property
    def selected(self) -> str:
        """Name of the winner."""
        return self.candidates[0].name

    def table(self, problem: Problem) -> FloatArray:
        """Columns of the rows of a problem, as `at_batches` returns it."""
        return self.columns.table(problem, self.physics.anchor(problem))

    def decode_each(self, problem: Problem) -> Mapping[str, FloatArray]:
        """What every candidate answers, in the target's unit."""
        anchor = self.physics.anchor(problem)
        table = self.columns.table(problem, anchor)
        values = predict_each(self.models, table, self.columns.published, self.seen)
        return {name: self.physics.decode(value, anchor) for name, value in values.items()}

    def answer(self, problem: Problem) -> Answer:
        """What the winner answers, with its intervals."""
        anchor = self.physics.anchor(problem)
        table = self.columns.table(problem, anchor)
        value = predict_each(self.models, table, self.columns.published, self.seen)[self.selected]
        half_width = self.bounds.interval(table, 0.9)
        upper = value + np.maximum(self.bounds.upper(table, 0.99), half_width)
        ends = (value - half_width, value, value + half_width, upper)
        return Answer(*(self.physics.decode(end, anchor) for end in ends))


class Answer(NamedTuple):
    """A value and the ends of its intervals in the target's unit, in ascending order, each of shape (rows,)."""

    lower_90: FloatArray
    value: FloatArray
    upper_90: FloatArray
    upper_99: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSolo:
    """What was learned; see `problem.FittedMethod`.

    Attributes:
        measured: What all rows taught: the best guess at what will be measured, failed runs included.
        promised: What the runs taught that can be right: the bound of jobs that work. The same where all can be.
        domain: Region of the training rows.
    """

    measured: LearnedRows
    promised: LearnedRows
    domain: TrainingDomain

    @property
    def selected(self) -> str:
        """Name of the winner."""
        return self.measured.selected

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """Scored table, best first."""
        return self.measured.candidates

    def predict(self, problem: Problem) -> Forecast:
        """Predicts every row with intervals; see `problem.FittedMethod`."""
        problem = at_batches(problem)
        answer = self.measured.answer(problem)
        promise = answer if self.promised is self.measured else self.promised.answer(problem)
        upper_99 = np.maximum(promise.value, np.minimum(promise.upper_99, largest_possible(problem)))
        return Forecast(
            value=np.minimum(answer.value, upper_99),
            lower_90=np.minimum(answer.lower_90, upper_99),
            upper_90=np.minimum(answer.upper_90, upper_99),
            upper_99=upper_99,
            in_domain=self.domain.contains(self.measured.table(problem).astype(np.float32)),
        )

    def predict_each(self, problem: Problem) -> Mapping[str, FloatArray]:
        """Predictions of every candidate by name, for the scored table of an evaluation."""
        return self.measured.decode_each(at_batches(problem))


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
        failed = find_failed_runs(problem)
        measured = _learn(problem, self.level, seed)
        is_doubted = failed.any() and not failed.all()
        promised = _learn(problem.subset(np.flatnonzero(~failed)), self.level, seed) if is_doubted else measured
        groups, _ = inner_folds(problem, self.level)
        domain = learn_domain(measured.table(problem).astype(np.float32), groups)
        return FittedSolo(measured=measured, promised=promised, domain=domain)


def _learn(problem: Problem, level: str, seed: int) -> LearnedRows:
    groups, folds = inner_folds(problem, level)
    physics = fit_physics(problem)
    anchor = physics.anchor(problem)
    encoded = physics.encode(problem.measured, anchor)
    columns = learn_solo_columns(problem, level, anchor)
    table = columns.table(problem, anchor)
    held_out = _hold_out(problem, level, folds, seed) if folds else _nothing_held_out(problem)
    errors = {name: physics.encode(values, anchor) - encoded for name, values in held_out.items()}
    order = sorted(held_out, key=lambda name: float(np.abs(errors[name]).mean()))
    return LearnedRows(
        candidates=tuple(_result(name, held_out[name], problem.measured) for name in order),
        physics=physics,
        columns=columns,
        models=fit_candidates(table, encoded, seed, columns.published, CANDIDATES if folds else (CONSTANT,)),
        seen=encoded,
        bounds=learn_bounds(table, -errors[order[0]], groups, seed),
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
