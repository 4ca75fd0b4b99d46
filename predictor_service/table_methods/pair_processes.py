"""Gaussian processes over the rows of a slowdown task: one for each device type and campaign.

The same two jobs slow each other down differently on two device types, and in two campaigns of one type, by more than
most models err. Where rows of several are learned together, each therefore has a process of its own, which sees all of
its rows more often than one process of everything would: only a part of more than `slowdown_process.ROWS_MAX` rows is
thinned out. What comes from elsewhere is answered by one process of everything. Where a device type is what will be
unseen, that one is the candidate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, IndexArray, JobFacts, LearningTask
from predictor_service.selection.folds import Fold
from predictor_service.table_methods.slowdown_pairs import (
    JobScale,
    PairRows,
    build_pair_rows,
    collect_jobs,
    learn_job_scale,
)
from predictor_service.table_methods.slowdown_process import FittedProcess, ProcessForm, draw_rows, fit_process

PART_ROWS_MIN: Final = 60
"""Parts with fewer rows are not learned by themselves."""
_CHUNK_ROWS: Final = 1_024


@dataclass(frozen=True, slots=True, eq=False)
class ProcessModel:
    """A fitted process and how jobs become its rows."""

    process: FittedProcess
    scale: JobScale

    def predict(self, learning_task: LearningTask) -> FloatArray:
        """Slowdown ratios of rows with one job co-located with the victim, shape (rows,)."""
        return self._by_chunks(learning_task, self.process.predict)

    def spread(self, learning_task: LearningTask) -> FloatArray:
        """Standard deviation of what is measured about what is predicted, in the learned scale, shape (rows,)."""
        return self._by_chunks(learning_task, self.process.spread)

    def _by_chunks(self, learning_task: LearningTask, answer: Callable[[PairRows], FloatArray]) -> FloatArray:
        """Every row may name two jobs of its own: the table of how alike jobs are must not grow with the rows."""
        starts = range(0, len(learning_task), _CHUNK_ROWS)
        chunks = [learning_task.subset(range(start, min(start + _CHUNK_ROWS, len(learning_task)))) for start in starts]
        return np.concatenate([np.zeros(0), *(answer(build_pair_rows(chunk, self.scale)) for chunk in chunks)])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One process.

    Attributes:
        rows: Of the whole learning task, ascending.
        seen: Those of `rows` that it learned from, by their places among them, ascending.
        model: What was learned.
    """

    rows: IndexArray
    seen: IndexArray
    model: ProcessModel


@dataclass(frozen=True, kw_only=True, eq=False)
class PairProcesses:
    """What was learned.

    Attributes:
        form: Of every process.
        learning_task: All rows.
        seed: Of what is drawn.
        parts: By device type and campaign; one of any name where all rows are learned together.
    """

    form: ProcessForm
    learning_task: LearningTask
    seed: int
    parts: dict[str, _Part]

    @property
    def rows_seen(self) -> int:
        """How many rows were learned from."""
        return sum(len(part.seen) for part in self.parts.values())

    @cached_property
    def together(self) -> ProcessModel:
        """One process of all rows; fitted when a row of no part is first asked about."""
        if len(self.parts) == 1:
            return next(iter(self.parts.values())).model
        return _fit(self.form, self.learning_task, np.arange(len(self.learning_task)), self.seed).model

    def predict(self, learning_task: LearningTask) -> FloatArray:
        """See `ProcessModel`."""
        return self._apart(learning_task, lambda model, rows: model.predict(rows))

    def spread(self, learning_task: LearningTask) -> FloatArray:
        """See `ProcessModel`."""
        return self._apart(learning_task, lambda model, rows: model.spread(rows))

    def leave_out(self, folds: Sequence[Fold]) -> tuple[FloatArray, FloatArray]:
        """Slowdown ratios and standard deviations of the tested rows, one fold after the other.

        Each is answered by its process as if that had seen none of the fold's tested rows.
        """
        values, spread = [], []
        for fold in folds:
            of_fold = np.empty((2, len(self.learning_task)))
            for part in self.parts.values():
                test = np.flatnonzero(np.isin(part.rows, fold.test))
                if len(test):
                    of_fold[:, part.rows[test]] = _leave_out(part, self.learning_task.subset(part.rows), test)
            values.append(of_fold[0, fold.test])
            spread.append(of_fold[1, fold.test])
        return np.concatenate([np.zeros(0), *values]), np.concatenate([np.zeros(0), *spread])

    def _apart(
        self, learning_task: LearningTask, answer: Callable[[ProcessModel, LearningTask], FloatArray]
    ) -> FloatArray:
        if len(self.parts) == 1:
            return answer(self.together, learning_task)
        result = np.empty(len(learning_task))
        for name, rows in _rows_by_part(learning_task).items():
            model = self.parts[name].model if name in self.parts else self.together
            result[rows] = answer(model, learning_task.subset(rows))
        return result


def fit_processes(
    form: ProcessForm, learning_task: LearningTask, folds: Sequence[Fold], level: str, seed: int
) -> PairProcesses:
    """Learns from measured pairs.

    Args:
        form: What every process is made of.
        learning_task: Rows with one job co-located with the victim, at least 2.
        folds: That rows will be left out by; a part that one of them would empty is not learned by itself.
        level: What will be unseen, one of `learning_task.LEVELS`.
        seed: Of the draw where there are too many rows.
    """
    found = _rows_by_part(learning_task)
    is_apart = level != "device" and all(_can_be_apart(rows, folds) for rows in found.values())
    chosen = found if is_apart else {"": np.arange(len(learning_task))}
    parts = {name: _fit(form, learning_task, rows, seed) for name, rows in chosen.items()}
    return PairProcesses(form=form, learning_task=learning_task, seed=seed, parts=parts)


def _rows_by_part(learning_task: LearningTask) -> dict[str, IndexArray]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, job in enumerate(learning_task.jobs):
        rows[_part_of(job)].append(row)
    return {name: np.array(found, dtype=np.intp) for name, found in sorted(rows.items())}


def _part_of(job: JobFacts) -> str:
    return f"{job.device}|{job.labels.get('campaign', '')}"


def _can_be_apart(rows: IndexArray, folds: Sequence[Fold]) -> bool:
    return len(rows) >= PART_ROWS_MIN and all(len(np.setdiff1d(rows, fold.test)) > 1 for fold in folds)


def _fit(form: ProcessForm, learning_task: LearningTask, rows: IndexArray, seed: int) -> _Part:
    part = learning_task.subset(rows)
    scale = learn_job_scale(collect_jobs(part))
    scale = scale if form.columns is None else scale.keep(form.columns)
    seen = draw_rows(len(part), seed)
    known = part.subset(seen)
    model = ProcessModel(fit_process(form, build_pair_rows(known, scale), known.measured), scale)
    return _Part(rows=rows, seen=seen, model=model)


def _leave_out(part: _Part, learning_task: LearningTask, test: IndexArray) -> tuple[FloatArray, FloatArray]:
    """Slowdown ratios and standard deviations of held-out rows, by the process as if it had seen none of them.

    Args:
        part: Of the learning task.
        learning_task: All rows of the part.
        test: Rows that are held out, whether the process has seen them or not.
    """
    model, is_seen = part.model, np.isin(test, part.seen)
    places = np.searchsorted(part.seen, test[is_seen])
    values, spread = np.empty(len(test)), np.empty(len(test))
    values[is_seen], spread[is_seen] = model.process.leave_out(places), model.process.leave_out_spread(places)
    if not is_seen.all():
        rest, others = ProcessModel(model.process.without(places), model.scale), learning_task.subset(test[~is_seen])
        values[~is_seen], spread[~is_seen] = rest.predict(others), rest.spread(others)
    return values, spread
