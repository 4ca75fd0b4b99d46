"""The candidates for slowdowns: processes over pairs of several forms, and regressors on columns of the pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from predictor_service.learning.learning_task import FloatArray, LearningTask
from predictor_service.regressors.candidates import PAIR_TABLE_CANDIDATES
from predictor_service.selection.folds import Fold
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.table_methods.pair_processes import fit_processes
from predictor_service.table_methods.raw_columns import RawColumns, learn_columns
from predictor_service.table_methods.slowdown_kernel import ANY, FAMILY, JOB, SMOOTH
from predictor_service.table_methods.slowdown_pairs import (
    STEP,
    UTILIZATION,
    JobScale,
    PairRows,
    build_pair_rows,
    collect_jobs,
    learn_job_scale,
)
from predictor_service.table_methods.slowdown_process import ProcessForm
from predictor_service.table_methods.untuned_trees import fit_untuned_trees


class PairModel(Protocol):
    """Something fitted."""

    def predict(self, learning_task: LearningTask) -> FloatArray:
        """Slowdown ratios of rows with one job co-located with the victim, shape (rows,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedCandidate:
    """A candidate that has learned.

    Attributes:
        held_out: Slowdown ratios of the rows of all folds, one fold after the other.
        model: Fitted on all rows.
        spread: Standard deviations of the same rows in the learned scale; None where the model knows none.
        rows_left_out: Training rows that it could not learn from because they are too many for it.
    """

    held_out: FloatArray
    model: PairModel
    spread: FloatArray | None = None
    rows_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSplit:
    """What candidates learn from.

    Attributes:
        learning_task: Training rows with one job co-located with the victim.
        folds: Which rows are held out to choose by.
        level: What will be unseen.
        seed: Of whatever is drawn.
    """

    learning_task: LearningTask
    folds: Sequence[Fold]
    level: str
    seed: int


Candidate = Callable[[TrainingSplit], FittedCandidate]


@dataclass(frozen=True, slots=True, eq=False)
class _MeanModel:
    value: float

    def predict(self, learning_task: LearningTask) -> FloatArray:
        return np.full(len(learning_task), self.value)


def learn_mean(training_split: TrainingSplit) -> FittedCandidate:
    """The mean of the training rows."""
    measured = training_split.learning_task.measured
    held_out = [np.full(len(fold.test), measured[fold.train].mean()) for fold in training_split.folds]
    model = _MeanModel(float(measured.mean()))
    return FittedCandidate(held_out=np.concatenate(held_out) if held_out else np.zeros(0), model=model)


def learn_untuned_trees(training_split: TrainingSplit) -> FittedCandidate:
    """The usual first attempt, see `untuned_trees`."""

    def fit(learning_task: LearningTask) -> PairModel:
        return fit_untuned_trees(learning_task, training_split.level, training_split.seed)

    learning_task = training_split.learning_task
    held_out = [
        fit(learning_task.subset(fold.train)).predict(learning_task.subset(fold.test)) for fold in training_split.folds
    ]
    return FittedCandidate(held_out=np.concatenate(held_out), model=fit(learning_task))


def process_candidate(form: ProcessForm) -> Candidate:
    """A candidate that is a Gaussian process of a form, or several; see `pair_processes`."""

    def learn(training_split: TrainingSplit) -> FittedCandidate:
        model = fit_processes(
            form, training_split.learning_task, training_split.folds, training_split.level, training_split.seed
        )
        held_out, spread = model.leave_out(training_split.folds)
        rows = len(training_split.learning_task)
        return FittedCandidate(
            held_out=held_out,
            model=model,
            spread=spread,
            rows_left_out=rows - model.rows_seen,
        )

    return learn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairColumns:
    """Columns of a pair for regressors: scaled figures of both jobs, what follows of them, what the set publishes.

    Attributes:
        scale: Of the jobs' figures.
        raw: What the set publishes; None = not used.
        middle: Median of each raw column.
    """

    scale: JobScale
    raw: RawColumns | None
    middle: FloatArray

    def table(self, learning_task: LearningTask) -> FloatArray:
        """Returns shape (rows, columns), finite."""
        rows = build_pair_rows(learning_task, self.scale)
        parts = [rows.line_columns(), _step_ratio(rows, self.scale)]
        if self.raw is not None:
            parts.append(_fill(self.raw.table(learning_task), self.middle))
        table = np.hstack(parts)
        # Where nothing distinguishes pairs, one column of zeros stands for the pair: regressors want at least one.
        return table if table.shape[1] else np.zeros((len(learning_task), 1))


def learn_pair_columns(learning_task: LearningTask, level: str, *, with_raw: bool) -> PairColumns:
    """Learns the columns of training rows."""
    scale = learn_job_scale(collect_jobs(learning_task))
    if not with_raw:
        return PairColumns(scale=scale, raw=None, middle=np.zeros(0))
    raw = learn_columns(learning_task, level, with_graph=True)
    table = raw.table(learning_task)
    known = [column[np.isfinite(column)] for column in table.T]
    middle = np.array([np.median(column) if len(column) else 0.0 for column in known])
    return PairColumns(scale=scale, raw=raw, middle=middle)


def _fill(table: FloatArray, middle: FloatArray) -> FloatArray:
    filled = np.where(np.isfinite(table), table, middle)
    return np.asarray(np.sign(filled) * np.log1p(np.abs(filled)))


def _step_ratio(rows: PairRows, scale: JobScale) -> FloatArray:
    """Logarithm of the other's step over the victim's, in standard deviations; no column where steps are not known."""
    places = [place for place, name in enumerate(scale.names) if name == STEP]
    steps = rows.jobs.columns[:, places]
    return np.asarray(steps[rows.other] - steps[rows.victim])


@dataclass(frozen=True, slots=True, eq=False)
class _ColumnModel:
    columns: PairColumns
    regressor: Any

    def predict(self, learning_task: LearningTask) -> FloatArray:
        values = self.regressor.predict(self.columns.table(learning_task))
        return SLOWDOWN.expand(np.asarray(values, dtype=np.float64))


def column_candidate(build: Callable[[int], Any], *, with_raw: bool) -> Candidate:
    """A candidate that is a regressor on the pair's columns.

    Args:
        build: From a seed to an unfitted regressor.
        with_raw: Whether it also sees what the set publishes; not for those that many columns mislead.
    """

    def learn(training_split: TrainingSplit) -> FittedCandidate:
        columns = learn_pair_columns(training_split.learning_task, training_split.level, with_raw=with_raw)
        table, encoded = (
            columns.table(training_split.learning_task),
            SLOWDOWN.compress(training_split.learning_task.measured),
        )
        held_out = [
            np.asarray(build(training_split.seed).fit(table[fold.train], encoded[fold.train]).predict(table[fold.test]))
            for fold in training_split.folds
        ]
        model = _ColumnModel(columns, build(training_split.seed).fit(table, encoded))
        return FittedCandidate(held_out=SLOWDOWN.expand(np.concatenate(held_out)), model=model)

    return learn


_OWN_EFFECTS: Final = ((JOB, ANY), (ANY, JOB))
_SMOOTH_EFFECTS: Final = ((SMOOTH, ANY), (ANY, SMOOTH))
_INTERACTIONS: Final = (
    (FAMILY, ANY), (ANY, FAMILY), (SMOOTH, SMOOTH), (FAMILY, FAMILY), (FAMILY, SMOOTH), (SMOOTH, FAMILY),
    (JOB, SMOOTH), (SMOOTH, JOB),
)  # fmt: skip


def _forms() -> dict[str, ProcessForm]:
    forms = {}
    for shift, name in ((1.0, "time"), (0.1, "odds")):
        forms[f"additive_{name}"] = ProcessForm(parts=_OWN_EFFECTS, columns=(), shift=shift, has_line=False)
        forms[f"additive_by_step_{name}"] = ProcessForm(
            parts=(*_OWN_EFFECTS, *_SMOOTH_EFFECTS), columns=(STEP,), shift=shift, has_line=False
        )
        forms[f"line_{name}"] = ProcessForm(parts=_OWN_EFFECTS, columns=(STEP, UTILIZATION), shift=shift, has_line=True)
        forms[f"smooth_{name}"] = ProcessForm(
            parts=(*_OWN_EFFECTS, *_SMOOTH_EFFECTS, (SMOOTH, SMOOTH)), columns=(STEP, UTILIZATION), shift=shift,
            has_line=True,
        )  # fmt: skip
        forms[f"interacting_{name}"] = ProcessForm(
            parts=(*_OWN_EFFECTS, *_SMOOTH_EFFECTS, *_INTERACTIONS), columns=None, shift=shift, has_line=True
        )
    return forms


def _hiding_waits(forms: Mapping[str, ProcessForm]) -> dict[str, ProcessForm]:
    return {
        name.replace("_odds", "_waits"): dataclasses.replace(form, hides_waits=True)
        for name, form in forms.items()
        if name.endswith("_odds")
    }


CANDIDATES: Final[Mapping[str, Candidate]] = {
    "mean": learn_mean,
    **{name: process_candidate(form) for name, form in _forms().items()},
    **{name: column_candidate(build, with_raw="trees" in name) for name, build in PAIR_TABLE_CANDIDATES.items()},
    "untuned_trees": learn_untuned_trees,
}
"""In order of preference among equals."""
FEW_ROWS_CANDIDATES: Final[Mapping[str, Candidate]] = {name: CANDIDATES[name] for name in ("mean", "untuned_trees")}
"""Fewer rows than the others have parameters still show whether the published columns help."""
WAIT_CANDIDATES: Final[Mapping[str, Candidate]] = {
    name: process_candidate(form) for name, form in _hiding_waits(_forms()).items()
}
"""They join where it is known how much of the time the jobs leave the device idle; elsewhere they would be copies."""


def list_candidates(training_split: TrainingSplit) -> Mapping[str, Candidate]:
    """Returns the candidates that can learn from these rows."""
    jobs = (
        job
        for row in zip(training_split.learning_task.jobs, training_split.learning_task.others, strict=True)
        for job in (row[0], *row[1])
    )
    shares = [job.solo.utilization_ratio for job in jobs]
    leave_idle = [share is not None and share < 1.0 - _IDLE_MIN for share in shares]
    return {**CANDIDATES, **WAIT_CANDIDATES} if any(leave_idle) and None not in shares else CANDIDATES


_IDLE_MIN: Final = 0.1
"""The least shift of the forms in which effects add up."""
