"""Slowdowns, our way: candidates of several kinds, chosen by folds of the kind that will be unseen, or a blend of them.

A victim beside several jobs is predicted beside each of them, and the slowdowns are composed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.errors import TrainingDataError
from predictor_service.features.slowdown_composition import compose_slowdowns
from predictor_service.learning.learned_scale import from_learned_scale, to_learned_scale
from predictor_service.learning.problem import CandidateResult, FloatArray, Forecast, IndexArray, Problem
from predictor_service.learning.slowdown_candidates import (
    CANDIDATES,
    TARGET,
    Candidate,
    Learned,
    Lesson,
    PairColumns,
    PairModel,
    learn_mean,
    learn_pair_columns,
)
from predictor_service.learning.slowdown_folds import inner_folds
from predictor_service.learning.slowdown_process import ROWS_MAX
from predictor_service.selection.conformal import ConformalBounds, calibrate
from predictor_service.selection.domain import TrainingDomain, learn_domain

ROWS_MIN: Final = 12
"""Fewer rows carry no choice: the mean answers."""
BLEND: Final = "blend"
_BLENDED_MAX: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Blend:
    """Geometric mean of shared times."""

    members: Sequence[PairModel]

    def predict(self, problem: Problem) -> FloatArray:
        return _blend([member.predict(problem) for member in self.members])


def _blend(predictions: Sequence[FloatArray]) -> FloatArray:
    return from_learned_scale(TARGET, np.mean([to_learned_scale(TARGET, values) for values in predictions], axis=0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSlowdown:
    """What was learned; see `problem.FittedMethod`.

    Attributes:
        selected: Name of the winner.
        candidates: Scored table, best first.
        models: Every candidate, fitted on all rows.
        bounds: Residuals of the winner on held-out rows, in ln(1 + slowdown).
        columns: How pairs become rows of the domain.
        domain: Region of the training rows.
    """

    selected: str
    candidates: Sequence[CandidateResult]
    models: Mapping[str, PairModel]
    bounds: ConformalBounds
    columns: PairColumns
    domain: TrainingDomain

    def predict(self, problem: Problem) -> Forecast:
        """Predicts every row with an interval; see `problem.FittedMethod`."""
        pairs, row_of_pair = pair_up(problem)
        value = compose_slowdowns(self.models[self.selected].predict(pairs), row_of_pair, len(problem))
        learned = to_learned_scale(TARGET, value)
        half_width = self.bounds.half_width(0.9)
        return Forecast(
            value=value,
            lower_90=from_learned_scale(TARGET, learned - half_width),
            upper_90=from_learned_scale(TARGET, learned + half_width),
            upper_99=from_learned_scale(TARGET, learned + self.bounds.upper_offset(0.99)),
            in_domain=_every(self._pairs_in_domain(pairs), row_of_pair, len(problem)),
        )

    def predict_each(self, problem: Problem) -> Mapping[str, FloatArray]:
        """Predictions of every candidate by name, for the scored table of an evaluation."""
        pairs, row_of_pair = pair_up(problem)
        return {
            name: compose_slowdowns(model.predict(pairs), row_of_pair, len(problem))
            for name, model in self.models.items()
        }

    def _pairs_in_domain(self, pairs: Problem) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return self.domain.contains(self.columns.table(pairs).astype(np.float32))


def pair_up(problem: Problem) -> tuple[Problem, IndexArray]:
    """Splits rows of several jobs beside the victim into one row per job beside it.

    Returns:
        The rows and, for each, the place of the row that it came from.
    """
    places = [row for row, others in enumerate(problem.others) for _ in others]
    pairs = problem.subset(places)
    others = tuple((other,) for beside in problem.others for other in beside)
    return dataclasses.replace(pairs, others=others), np.array(places, dtype=np.intp)


def _every(
    flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], row_of_pair: IndexArray, rows: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    result = np.ones(rows, dtype=bool)
    np.logical_and.at(result, row_of_pair, flags)
    return result


@dataclass(frozen=True, slots=True)
class SlowdownMethod:
    """See the module.

    Attributes:
        level: What will be unseen, one of `problem.LEVELS`; inner folds hold out the same.
        shots: Pairs that will have been observed of every new job.
        name: For the report.
    """

    level: str
    shots: int = 0
    name: str = "cotenant"

    def fit(self, problem: Problem, seed: int) -> FittedSlowdown:
        """Learns from the rows with one job beside the victim; see `problem.Method`."""
        lesson, level = self._lesson(problem, seed)
        learned = {name: candidate(lesson) for name, candidate in _choice(lesson).items()}
        tested = np.concatenate([fold.test for fold in lesson.folds] or [np.zeros(0, dtype=np.intp)])
        measured = lesson.problem.measured[tested]
        _add_blend(learned, measured)
        results = _ranked(learned, measured)
        winner = learned[results[0].name]
        residuals = to_learned_scale(TARGET, measured) - to_learned_scale(TARGET, winner.held_out)
        groups = lesson.problem.groups(level)
        columns = learn_pair_columns(lesson.problem, level, with_raw=False)
        table = columns.table(lesson.problem).astype(np.float32)
        return FittedSlowdown(
            selected=results[0].name,
            candidates=results,
            models={name: each.model for name, each in learned.items()},
            bounds=calibrate(residuals if len(residuals) else _spread_of(lesson.problem), _count(groups)),
            columns=columns,
            domain=learn_domain(table, groups),
        )

    def _lesson(self, problem: Problem, seed: int) -> tuple[Lesson, str]:
        single = np.flatnonzero([len(others) == 1 for others in problem.others])
        if not len(single):
            raise TrainingDataError(
                f"none of {len(problem)} rows has exactly one job beside the victim", remedy="measure jobs in pairs"
            )
        if len(single) > ROWS_MAX:
            single = np.sort(np.random.default_rng(seed).choice(single, ROWS_MAX, replace=False))
        pairs = problem.subset(single)
        level, folds = inner_folds(pairs, self.level, self.shots, seed) if len(pairs) >= ROWS_MIN else (self.level, [])
        return Lesson(problem=pairs, folds=folds, level=level, seed=seed), level


def _choice(lesson: Lesson) -> Mapping[str, Candidate]:
    return CANDIDATES if lesson.folds else {"mean": learn_mean}


def _add_blend(learned: dict[str, Learned], measured: FloatArray) -> None:
    """Adds the blend of the best candidates; which ones and whether it is used is chosen on the same held-out rows."""
    best = [learned[result.name] for result in _ranked(learned, measured)[:_BLENDED_MAX]]
    if len(best) > 1:
        held_out = _blend([each.held_out for each in best])
        learned[BLEND] = Learned(held_out=held_out, model=_Blend([each.model for each in best]))


def _ranked(learned: Mapping[str, Learned], measured: FloatArray) -> tuple[CandidateResult, ...]:
    results = (
        CandidateResult(name=name, inner_mae=float(np.mean(np.abs(each.held_out - measured))) if len(measured) else 0.0)
        for name, each in learned.items()
    )
    return tuple(sorted(results, key=lambda result: result.inner_mae))


def _spread_of(problem: Problem) -> FloatArray:
    """Without folds the rows' own spread about their mean stands in for the residuals."""
    encoded = to_learned_scale(TARGET, problem.measured)
    return np.asarray(encoded - encoded.mean()) if len(encoded) else np.zeros(1)


def _count(groups: Sequence[frozenset[str]]) -> int:
    return len(frozenset[str]().union(*groups))
