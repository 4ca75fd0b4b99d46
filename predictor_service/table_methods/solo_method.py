"""Utilization, activity, memory and step time of a job alone: physics, a learned correction, calibrated intervals.

Nested by construction: candidates are compared, and intervals calibrated, on folds inside the rows that `fit` is
given, held out at the same level as what will be unseen. The error on other rows is never the error that chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from predictor_service.learning.failed_runs import find_failed_runs
from predictor_service.learning.learning_task import CandidateResult, FloatArray, Forecast, LearningTask
from predictor_service.regressors.candidates import CONSTANT, TABLE_CANDIDATES
from predictor_service.selection.domain import TrainingDomain, learn_domain
from predictor_service.selection.folds import Fold, grouped_folds
from predictor_service.selection.local_bounds import BRIEF, THOROUGH, LocalBounds, SpreadSearch, learn_bounds
from predictor_service.selection.targets import STEP
from predictor_service.table_methods.analytical_estimate import fit_analytical_model, largest_possible
from predictor_service.table_methods.candidate_weights import mix_answers, weigh_candidates
from predictor_service.table_methods.solo_candidates import UNTUNED
from predictor_service.table_methods.solo_columns import at_batches
from predictor_service.table_methods.solo_models import SoloModels, fit_models, hold_out

INNER_FOLDS_MAX: Final = 6
BLEND: Final = "blend"
_MEAN_AND_MIDDLE: Final = {"extra_trees": 0.5, "steady_trees": 0.5}
_PROMISED: Final = 0.99
_COARSEST_FIRST: Final = ("device", "family", "architecture", "job")
_LEVEL_ALONE: Final = {"random_pair": "job"}
"""A job alone is its own pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blend:
    """Candidates with weights, and the intervals around their combined answer.

    Attributes:
        weights: By candidate; their sum is 1.
        bounds: From what it erred by on held-out rows.
    """

    weights: Mapping[str, float]
    bounds: LocalBounds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """What candidates predict for rows whose groups they have not seen, in the learned scale.

    Attributes:
        table: Columns of the rows.
        encoded: What was measured.
        answers: By candidate.
        groups: Of each row.
    """

    table: FloatArray
    encoded: FloatArray
    answers: Mapping[str, FloatArray]
    groups: Sequence[frozenset[str]]

    def bound(self, weights: Mapping[str, float], seed: int, search: SpreadSearch) -> Blend:
        """Weighted candidates with the intervals that their errors teach."""
        residuals = self.encoded - mix_answers(self.answers, weights)
        bounds = learn_bounds(self.table, residuals, self.groups, seed, search=search)
        return Blend(weights=weights, bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedRows:
    """What one set of rows taught.

    Attributes:
        candidates: Scored table, the blend first, then best first.
        models: All candidates fitted on all rows; the constant alone where rows carry no choice.
        blend: Of the candidates that err little.
        held_out: What candidates predicted for these rows without their groups.
    """

    candidates: Sequence[CandidateResult]
    models: SoloModels
    blend: Blend
    held_out: HeldOut

    def decode_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """What the blend and every candidate answer, in the target's unit."""
        each = self.models.decode_each(learning_task)
        return each if len(each) == 1 else {BLEND: self.answer(learning_task, self.blend).value, **each}

    def answer(self, learning_task: LearningTask, blend: Blend) -> Answer:
        """What one of the blends answers, with its intervals."""
        analytical_estimate = self.models.analytical_model.analytical_estimate(learning_task)
        table = self.models.table(learning_task)
        value = mix_answers(self.models.encode_each(learning_task), blend.weights)
        half_width = blend.bounds.interval(table, 0.9)
        upper = value + np.maximum(blend.bounds.upper(table, _PROMISED), half_width)
        ends = (value - half_width, value, value + half_width, upper)
        return Answer(*(self.models.analytical_model.decode(end, analytical_estimate) for end in ends))


class Answer(NamedTuple):
    """A value and the ends of its intervals in the target's unit, in ascending order, each of shape (rows,)."""

    lower_90: FloatArray
    value: FloatArray
    upper_90: FloatArray
    upper_99: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSolo:
    """What was learned; see `learning_task.FittedMethod`.

    Attributes:
        measured: What all rows taught: the best estimate of what will be measured, failed runs included.
        sound: What the runs taught that can be right: the bound of jobs that work. The same where all can be.
        promise: Of the candidates of `sound`.
        domain: Region of the training rows.
    """

    measured: LearnedRows
    sound: LearnedRows
    promise: Blend
    domain: TrainingDomain

    @property
    def selected(self) -> str:
        """The blend, or the one candidate that there is."""
        return self.measured.candidates[0].name

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """Scored table, best first."""
        return self.measured.candidates

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row with intervals; see `learning_task.FittedMethod`."""
        learning_task = at_batches(learning_task)
        answer = self.measured.answer(learning_task, self.measured.blend)
        promise = self.sound.answer(learning_task, self.promise)
        upper_99 = np.maximum(promise.value, np.minimum(promise.upper_99, largest_possible(learning_task)))
        return Forecast(
            value=np.minimum(answer.value, upper_99),
            lower_90=np.minimum(answer.lower_90, upper_99),
            upper_90=np.minimum(answer.upper_90, upper_99),
            upper_99=upper_99,
            in_domain=self.domain.contains(self.measured.models.table(learning_task).astype(np.float32)),
        )

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """Predictions of every candidate by name, for the scored table of an evaluation."""
        return self.measured.decode_each(at_batches(learning_task))


@dataclass(frozen=True, slots=True)
class SoloMethod:
    """See the module.

    Attributes:
        level: What will be unseen, one of `learning_task.LEVELS`; inner folds hold out the same.
        name: For the report.
    """

    level: str
    name: str = "cotenant"

    def fit(self, learning_task: LearningTask, seed: int) -> FittedSolo:
        """Learns from all rows of a learning task; see `learning_task.Method`."""
        learning_task = _comparable(at_batches(learning_task))
        failed = find_failed_runs(learning_task)
        measured = _learn(learning_task, self.level, seed)
        is_doubted = failed.any() and not failed.all()
        sound = _learn(learning_task.subset(np.flatnonzero(~failed)), self.level, seed) if is_doubted else measured
        _, groups, _ = inner_folds(learning_task, self.level)
        domain = learn_domain(measured.models.table(learning_task).astype(np.float32), groups)
        return FittedSolo(measured=measured, sound=sound, promise=_choose_promise(sound, seed), domain=domain)


def _comparable(learning_task: LearningTask) -> LearningTask:
    """The rows whose step is that of the others; all where none is."""
    if learning_task.target is not STEP:
        return learning_task
    kept = [row for row, job in enumerate(learning_task.jobs) if job.labels.get("step_ms") != "not_comparable"]
    return learning_task.subset(kept) if kept else learning_task


def _candidates(level: str, used: str) -> tuple[str, ...]:
    """Trees that know no physics cannot reach a device that they have not seen, and are not used for one untested."""
    return tuple(TABLE_CANDIDATES) if level == "device" != used else (*TABLE_CANDIDATES, UNTUNED)


def _learn(learning_task: LearningTask, level: str, seed: int) -> LearnedRows:
    used, groups, folds = inner_folds(learning_task, level)
    names = _candidates(level, used) if folds else (CONSTANT,)
    models = fit_models(learning_task, level, seed, names)
    analytical_estimate, encoded = models.analytical_model.analytical_estimate(learning_task), models.seen
    held_out = hold_out(learning_task, level, folds, seed, names) if folds else _nothing_held_out(learning_task)
    answers = {name: models.analytical_model.encode(values, analytical_estimate) for name, values in held_out.items()}
    errors = {name: values - encoded for name, values in answers.items()}
    count = len(frozenset[str]().union(*groups))
    weights = weigh_candidates(errors, count, leader=UNTUNED, is_like_unseen=used == _LEVEL_ALONE.get(level, level))
    blended = mix_answers(answers, weights)
    order = sorted(held_out, key=lambda name: float(np.abs(errors[name]).mean()))
    results = [_result(name, held_out[name], learning_task.measured) for name in order]
    if folds:
        results.insert(
            0, _result(BLEND, models.analytical_model.decode(blended, analytical_estimate), learning_task.measured)
        )
    unseen = HeldOut(table=models.table(learning_task), encoded=encoded, answers=answers, groups=groups)
    return LearnedRows(
        candidates=tuple(results), models=models, blend=unseen.bound(weights, seed, BRIEF), held_out=unseen
    )


def _choose_promise(learned: LearnedRows, seed: int) -> Blend:
    """The blend whose upper bound costs least: one that follows the median job errs less and covers their tail less.

    Where groups are too few to decide, it is the one that errs least.
    """
    if not learned.blend.bounds.scores.is_supported(_PROMISED):
        return learned.blend
    known = learned.held_out.answers.keys()
    weighings = [weights for weights in (learned.blend.weights, _MEAN_AND_MIDDLE) if weights.keys() <= known]
    promises = [learned.held_out.bound(weights, seed, THOROUGH) for weights in weighings]
    return min(promises, key=lambda promise: promise.bounds.cost)


def inner_folds(learning_task: LearningTask, level: str) -> tuple[str, Sequence[frozenset[str]], list[Fold]]:
    """Folds inside the training rows at the level asked for, or at the coarsest finer one that has enough groups.

    Returns:
        The level used, the groups of the rows at it, and the folds; none where fewer than three jobs were measured.
    """
    start = _COARSEST_FIRST.index(_LEVEL_ALONE.get(level, level))
    for finer in _COARSEST_FIRST[start:]:
        groups = learning_task.groups(finer)
        folds = grouped_folds(groups, folds_max=INNER_FOLDS_MAX)
        if folds:
            return finer, groups, folds
    return "job", learning_task.groups("job"), []


def _nothing_held_out(learning_task: LearningTask) -> dict[str, FloatArray]:
    """Rows that carry no choice: the typical correction answers, and its own errors on the rows must do."""
    analytical_model = fit_analytical_model(learning_task)
    analytical_estimate = analytical_model.analytical_estimate(learning_task)
    middle = np.full(
        len(learning_task), float(np.median(analytical_model.encode(learning_task.measured, analytical_estimate)))
    )
    return {CONSTANT: analytical_model.decode(middle, analytical_estimate)}


def _result(name: str, predicted: FloatArray, measured: FloatArray) -> CandidateResult:
    return CandidateResult(name=name, inner_mae=float(np.abs(predicted - measured).mean()))
