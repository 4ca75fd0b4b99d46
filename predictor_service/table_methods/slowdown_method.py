"""Slowdowns, our way: candidates of several kinds, weighed by folds of the kind that will be unseen.

Candidates are ranked by their error against the mean predictor's on the same fold, averaged over folds as a logarithm:
every held-out group counts alike, however large or hard it is. The best of them blend with weights that fall fast with
the rank's error, because with a handful of groups the difference between two good candidates is mostly chance.

A victim co-located with several jobs is predicted with each of them, and the slowdowns are composed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.errors import TrainingDataError
from predictor_service.learning.learning_task import CandidateResult, FloatArray, Forecast, LearningTask
from predictor_service.learning.multiway_colocation import compose_multiway_slowdowns, every_pair, pair_up, widest_pair
from predictor_service.selection.conformal import ConformalBounds, PartBounds, calibrate, calibrate_parts
from predictor_service.selection.domain import TrainingDomain, learn_domain
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.pair_processes import PairProcesses
from predictor_service.table_methods.slowdown_candidates import (
    FEW_ROWS_CANDIDATES,
    Candidate,
    FittedCandidate,
    PairColumns,
    PairModel,
    TrainingSplit,
    learn_mean,
    learn_pair_columns,
    list_candidates,
)
from predictor_service.table_methods.slowdown_folds import inner_folds

ROWS_MAX: Final = 20_000
"""Rows that any candidate learns from; more are thinned out by seed. Processes bound themselves much lower."""
ROWS_MIN: Final = 12
"""Fewer rows carry little choice: the mean and untuned trees answer."""
BLEND: Final = "blend"
MEAN: Final = "mean"
SPREAD_FORM: Final = "interacting_time"
"""The process whose uncertainty scales the intervals: the richest one, learned in ln(1 + slowdown)."""
_BLENDED_MAX: Final = 5
_EXCESS_SCALE: Final = 0.2
"""A candidate that errs a fifth more than the best weighs 1/e of it."""
_ERROR_MIN: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Blend:
    """Weighted geometric mean of shared times."""

    members: Sequence[PairModel]
    weights: FloatArray

    def predict(self, learning_task: LearningTask) -> FloatArray:
        return _blend([member.predict(learning_task) for member in self.members], self.weights)


def _blend(predictions: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
    learned = np.array([SLOWDOWN.compress(values) for values in predictions])
    return SLOWDOWN.expand(weights @ learned)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSlowdown:
    """What was learned; see `learning_task.FittedMethod`.

    Attributes:
        selected: Name of the winner.
        candidates: Scored table, best first.
        models: Every candidate, fitted on all rows.
        bounds: What the winner's errors on held-out rows were like.
        uncertain: Returns how uncertain rows are relative to each other; None = all alike.
        columns: How pairs become rows of the domain.
        domain: Region of the training rows.
        unlike: How the training rows differ from their mean, where there were too few groups of what will be unseen to
            hold one out; None where some were.
    """

    selected: str
    candidates: Sequence[CandidateResult]
    models: Mapping[str, PairModel]
    bounds: PartBounds
    uncertain: PairProcesses | None
    columns: PairColumns
    domain: TrainingDomain
    unlike: ConformalBounds | None = None

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row with an interval; see `learning_task.FittedMethod`."""
        pairs, row_of_pair = pair_up(learning_task)
        value = compose_multiway_slowdowns(learning_task, self.models[self.selected].predict(pairs), row_of_pair)
        learned = SLOWDOWN.compress(value)
        spread = np.ones(len(pairs)) if self.uncertain is None else self.uncertain.spread(pairs)
        half_width = self._widened(self.bounds.half_width(spread, 0.9), 0.9)
        half_width = widest_pair(half_width, row_of_pair, len(learning_task))
        upper = self._widened(self.bounds.upper_offset(spread, 0.99), 0.99)
        upper = widest_pair(upper, row_of_pair, len(learning_task))
        return Forecast(
            value=value,
            lower_90=SLOWDOWN.expand(learned - half_width),
            upper_90=SLOWDOWN.expand(learned + half_width),
            upper_99=SLOWDOWN.expand(learned + np.maximum(upper, half_width)),
            in_domain=every_pair(self._pairs_in_domain(pairs), row_of_pair, len(learning_task)),
        )

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """Predictions of every candidate by name, for the scored table of an evaluation."""
        pairs, row_of_pair = pair_up(learning_task)
        return {
            name: compose_multiway_slowdowns(learning_task, model.predict(pairs), row_of_pair)
            for name, model in self.models.items()
        }

    def _widened(self, half_width: FloatArray, confidence: float) -> FloatArray:
        """What was never held out may differ from the training rows by as much as these do from each other."""
        return half_width if self.unlike is None else half_width + self.unlike.half_width(confidence)

    def _pairs_in_domain(self, pairs: LearningTask) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return self.domain.contains(self.columns.table(pairs).astype(np.float32))


@dataclass(frozen=True, slots=True)
class SlowdownMethod:
    """See the module.

    Attributes:
        level: What will be unseen, one of `learning_task.LEVELS`; inner folds hold out the same.
        shots: Pairs that will have been observed of every new job.
        name: For the report.
    """

    level: str
    shots: int = 0
    name: str = "cotenant"

    def fit(self, learning_task: LearningTask, seed: int) -> FittedSlowdown:
        """Learns from the rows with one job co-located with the victim; see `learning_task.Method`."""
        training_split, level = self._training_split(learning_task, seed)
        learned = {name: candidate(training_split) for name, candidate in _choice(training_split).items()}
        tested = np.concatenate([fold.test for fold in training_split.folds] or [np.zeros(0, dtype=np.intp)])
        measured = training_split.learning_task.measured[tested]
        ranks = _relative_errors(learned, measured, [len(fold.test) for fold in training_split.folds])
        results = _results(learned, measured, ranks)
        winner = results[0].name
        if len(learned) > 1:
            winner, learned[BLEND] = BLEND, _weigh(learned, ranks)
            results = (*_results({BLEND: learned[BLEND]}, measured, {BLEND: 0.0}), *results)
        residuals = SLOWDOWN.compress(measured) - SLOWDOWN.compress(learned[winner].held_out)
        groups = training_split.learning_task.groups(level)
        columns = learn_pair_columns(training_split.learning_task, level, with_raw=False)
        table = columns.table(training_split.learning_task).astype(np.float32)
        return FittedSlowdown(
            selected=winner,
            candidates=results,
            models={name: each.model for name, each in learned.items()},
            bounds=_bounds(training_split, learned, residuals, _count(groups)),
            uncertain=_uncertain(training_split, learned),
            columns=columns,
            domain=learn_domain(table, groups),
            unlike=None if level == self.level else calibrate(_spread_of(training_split.learning_task), 1),
        )

    def _training_split(self, learning_task: LearningTask, seed: int) -> tuple[TrainingSplit, str]:
        single = np.flatnonzero([len(others) == 1 for others in learning_task.others])
        if not len(single):
            raise TrainingDataError(
                f"none of {len(learning_task)} rows has exactly one job co-located with the victim",
                remedy="measure jobs in pairs",
            )
        if len(single) > ROWS_MAX:
            single = np.sort(np.random.default_rng(seed).choice(single, ROWS_MAX, replace=False))
        pairs = learning_task.subset(single)
        level, folds = inner_folds(pairs, self.level, self.shots, seed)
        return TrainingSplit(learning_task=pairs, folds=folds, level=level, seed=seed), level


def _choice(training_split: TrainingSplit) -> Mapping[str, Candidate]:
    if not training_split.folds:
        return {MEAN: learn_mean}
    return list_candidates(training_split) if len(training_split.learning_task) >= ROWS_MIN else FEW_ROWS_CANDIDATES


def _relative_errors(
    learned: Mapping[str, FittedCandidate], measured: FloatArray, sizes: Sequence[int]
) -> Mapping[str, float]:
    """Error of each candidate over the mean predictor's, as the mean logarithm over folds; 0 without folds."""
    if not sizes:
        return dict.fromkeys(learned, 0.0)
    starts = np.cumsum([0, *sizes[:-1]])
    folds = {name: np.add.reduceat(np.abs(each.held_out - measured), starts) for name, each in learned.items()}
    return {
        name: float(np.mean(np.log(np.maximum(errors, _ERROR_MIN) / np.maximum(folds[MEAN], _ERROR_MIN))))
        for name, errors in folds.items()
    }


def _weigh(learned: Mapping[str, FittedCandidate], ranks: Mapping[str, float]) -> FittedCandidate:
    best = sorted(ranks, key=lambda name: ranks[name])[:_BLENDED_MAX]
    excess = np.array([np.expm1(ranks[name] - ranks[best[0]]) for name in best])
    weights = np.exp(-excess / _EXCESS_SCALE)
    weights /= weights.sum()
    return FittedCandidate(
        held_out=_blend([learned[name].held_out for name in best], weights),
        rows_left_out=max(learned[name].rows_left_out for name in best),
        model=_Blend([learned[name].model for name in best], weights),
    )


def _results(
    learned: Mapping[str, FittedCandidate], measured: FloatArray, ranks: Mapping[str, float]
) -> tuple[CandidateResult, ...]:
    """The scored table in the order of the ranks."""
    return tuple(
        CandidateResult(
            name=name,
            inner_mae=float(np.mean(np.abs(learned[name].held_out - measured))) if len(measured) else 0.0,
            rows_left_out=learned[name].rows_left_out,
        )
        for name in sorted(learned, key=lambda name: ranks[name])
    )


def _bounds(
    training_split: TrainingSplit, learned: Mapping[str, FittedCandidate], residuals: FloatArray, groups: int
) -> PartBounds:
    """Without folds the rows' own spread about their mean stands in for the residuals.

    Residuals are measured in units of a process's own uncertainty about each row, so that pairs of
    known jobs get narrower intervals than pairs of jobs that resemble nothing. Without a process all rows are alike.
    """
    if not len(residuals):
        return calibrate_parts(_spread_of(training_split.learning_task), (), groups)
    sizes, spread = [len(fold.test) for fold in training_split.folds], _held_out_spread(learned)
    return calibrate_parts(residuals if spread is None else residuals / spread, sizes, groups)


def _held_out_spread(learned: Mapping[str, FittedCandidate]) -> FloatArray | None:
    return learned[SPREAD_FORM].spread if SPREAD_FORM in learned else None


def _uncertain(training_split: TrainingSplit, learned: Mapping[str, FittedCandidate]) -> PairProcesses | None:
    """The process whose uncertainty the residuals were divided by."""
    model = learned[SPREAD_FORM].model if SPREAD_FORM in learned and training_split.folds else None
    return model if isinstance(model, PairProcesses) else None


def _spread_of(learning_task: LearningTask) -> FloatArray:
    encoded = SLOWDOWN.compress(learning_task.measured)
    return np.asarray(encoded - encoded.mean()) if len(encoded) else np.zeros(1)


def _count(groups: Sequence[frozenset[str]]) -> int:
    return len(frozenset[str]().union(*groups))
