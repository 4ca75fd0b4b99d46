"""The candidates for slowdowns: processes over pairs of several forms, and regressors on columns of the pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from predictor_service.learning.learning_task import FloatArray, IndexArray, LearningTask
from predictor_service.learning.raw_columns import RawColumns, learn_columns
from predictor_service.learning.slowdown_kernel import ANY, FAMILY, JOB, SMOOTH
from predictor_service.learning.slowdown_pairs import (
    STEP,
    UTILIZATION,
    JobScale,
    PairRows,
    build_pair_rows,
    collect_jobs,
    learn_job_scale,
)
from predictor_service.learning.slowdown_process import FittedProcess, ProcessForm, draw_rows, fit_process
from predictor_service.learning.untuned_trees import fit_untuned_trees
from predictor_service.regressors.candidates import PAIR_TABLE_CANDIDATES
from predictor_service.selection.folds import Fold
from predictor_service.selection.targets import SLOWDOWN


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
    """

    held_out: FloatArray
    model: PairModel
    spread: FloatArray | None = None


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


@dataclass(frozen=True, slots=True, eq=False)
class ProcessModel:
    """A fitted process and how jobs become its rows."""

    process: FittedProcess
    scale: JobScale

    def predict(self, learning_task: LearningTask) -> FloatArray:
        """See `PairModel`."""
        return self._by_chunks(learning_task, self.process.predict)

    def spread(self, learning_task: LearningTask) -> FloatArray:
        """Standard deviation of what is measured about what is predicted, in the learned scale, shape (rows,)."""
        return self._by_chunks(learning_task, self.process.spread)

    def _by_chunks(self, learning_task: LearningTask, answer: Callable[[PairRows], FloatArray]) -> FloatArray:
        """Every row may name two jobs of its own: the table of how alike jobs are must not grow with the rows."""
        starts = range(0, len(learning_task), _CHUNK_ROWS)
        chunks = [learning_task.subset(range(start, min(start + _CHUNK_ROWS, len(learning_task)))) for start in starts]
        return np.concatenate([np.zeros(0), *(answer(build_pair_rows(chunk, self.scale)) for chunk in chunks)])


def process_candidate(form: ProcessForm) -> Candidate:
    """A candidate that is a Gaussian process of a form; it learns from `slowdown_process.ROWS_MAX` rows at most."""

    def learn(training_split: TrainingSplit) -> FittedCandidate:
        scale = learn_job_scale(collect_jobs(training_split.learning_task))
        scale = scale if form.columns is None else scale.keep(form.columns)
        seen = draw_rows(len(training_split.learning_task), training_split.seed)
        known = training_split.learning_task.subset(seen)
        model = ProcessModel(fit_process(form, build_pair_rows(known, scale), known.measured), scale)
        held_out = [_leave_out(model, training_split.learning_task, seen, fold.test) for fold in training_split.folds]
        return FittedCandidate(
            held_out=np.concatenate([values for values, _ in held_out]),
            model=model,
            spread=np.concatenate([spread for _, spread in held_out]),
        )

    return learn


def _leave_out(
    model: ProcessModel, learning_task: LearningTask, seen: IndexArray, test: IndexArray
) -> tuple[FloatArray, FloatArray]:
    """Slowdown ratios and standard deviations of held-out rows, by the process as if it had seen none of them.

    Args:
        model: Fitted on the rows `seen` of the problem.
        learning_task: All rows.
        seen: Ascending.
        test: Rows that are held out, whether the process has seen them or not.
    """
    is_seen = np.isin(test, seen)
    places = np.searchsorted(seen, test[is_seen])
    values, spread = np.empty(len(test)), np.empty(len(test))
    values[is_seen], spread[is_seen] = model.process.leave_out(places), model.process.leave_out_spread(places)
    if not is_seen.all():
        rest, others = ProcessModel(model.process.without(places), model.scale), learning_task.subset(test[~is_seen])
        values[~is_seen], spread[~is_seen] = rest.predict(others), rest.spread(others)
    return values, spread


_CHUNK_ROWS: Final = 1_024


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
    """Everything that can learn this lesson."""
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
