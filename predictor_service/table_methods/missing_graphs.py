"""Rows without a graph among rows with one: a second fit, which sees no graph, answers them.

What learns from rows with graphs takes a typical graph for one that is missing, and trusts it. So a row of which any
job lacks its graph is answered by the same method as if no job had one, and is never called familiar. Where no training
row has a graph there is one fit only, and it uses what is known of the rows. Each of the two fits is made when it is
first needed: they take equally long, and rows that a service could not answer often need the second one alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from predictor_service.learning.learning_task import (
    BoolArray,
    CandidateResult,
    FittedMethod,
    FloatArray,
    Forecast,
    IndexArray,
    JobFacts,
    LearningTask,
)


class ScoredFit(FittedMethod, Protocol):
    """A fitted method that also returns what its candidates would have answered."""

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """Predictions of every row by candidate."""
        ...


class ScoredMethod(Protocol):
    """A method whose fits do."""

    @property
    def name(self) -> str:
        """Name of the method."""
        ...

    def fit(self, learning_task: LearningTask, seed: int) -> ScoredFit:
        """Learns from all rows of a learning task."""
        ...


@dataclass(frozen=True, eq=False)
class FittedWithAndWithout:
    """What was learned with graphs, and without; see `learning_task.FittedMethod`.

    Attributes:
        method: What learns.
        train: Rows that it learned from.
        seed: Of both fits.
    """

    method: ScoredMethod
    train: LearningTask
    seed: int

    @cached_property
    def fitted(self) -> ScoredFit:
        """The method, taught by the rows as they are."""
        return self.method.fit(self.train, self.seed)

    @property
    def selected(self) -> str:
        """The candidate that answers rows with graphs."""
        return self.fitted.selected

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """The scored table of the rows as they are."""
        return self.fitted.candidates

    @cached_property
    def without_graphs(self) -> ScoredFit:
        """The same method, taught as if no graph were known."""
        return self.method.fit(strip_graphs(self.train), self.seed)

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row; one without a graph is never in domain."""
        return predict_apart(
            learning_task,
            ~find_missing_graphs(learning_task),
            lambda known: self.fitted.predict(known),
            lambda missing: self.without_graphs.predict(strip_graphs(missing)),
        )

    def predict_each(self, learning_task: LearningTask) -> Mapping[str, FloatArray]:
        """What every candidate answers; of one that only learns from graphs what was chosen without them."""
        known, missing = _split(learning_task)
        if not len(missing):
            return self.fitted.predict_each(learning_task)
        apart = self.without_graphs.predict_each(strip_graphs(learning_task.subset(missing)))
        chosen = apart[self.without_graphs.selected]
        if not len(known):
            return {candidate.name: apart.get(candidate.name, chosen) for candidate in self.candidates}
        places = np.argsort(np.concatenate([known, missing]))
        with_graphs = self.fitted.predict_each(learning_task.subset(known))
        return {name: np.concatenate([values, apart.get(name, chosen)])[places] for name, values in with_graphs.items()}


@dataclass(frozen=True, slots=True)
class WithAndWithoutGraphs:
    """A method made safe for rows without a graph; see the module.

    Attributes:
        method: What learns.
    """

    method: ScoredMethod

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.method.name

    def fit(self, learning_task: LearningTask, seed: int) -> ScoredFit:
        """Learns from all rows of a learning task; see `learning_task.Method`."""
        if find_missing_graphs(learning_task).all():
            return self.method.fit(learning_task, seed)
        return FittedWithAndWithout(self.method, learning_task, seed)


def find_missing_graphs(learning_task: LearningTask) -> BoolArray:
    """Returns for every row whether one of its jobs has no figure of a graph, shape (rows,)."""
    rows = zip(learning_task.jobs, learning_task.others, strict=True)
    return np.array([not all(job.graph for job in (job, *others)) for job, others in rows], dtype=bool)


def predict_apart(
    learning_task: LearningTask,
    is_known: BoolArray,
    predict_known: Callable[[LearningTask], Forecast],
    predict_others: Callable[[LearningTask], Forecast],
) -> Forecast:
    """Answers rows that a fit knows enough of by it, and others apart; those are never in domain.

    Args:
        learning_task: All rows.
        is_known: Shape (rows,).
        predict_known: Called only where some rows are known.
        predict_others: Called only where some are not.
    """
    if is_known.all():
        return predict_known(learning_task)
    known, others = np.flatnonzero(is_known), np.flatnonzero(~is_known)
    apart = dataclasses.replace(
        predict_others(learning_task.subset(others)), in_domain=np.zeros(len(others), dtype=bool)
    )
    if not len(known):
        return apart
    places = np.argsort(np.concatenate([known, others]))
    parts = (predict_known(learning_task.subset(known)), apart)
    names = [field.name for field in dataclasses.fields(Forecast)]
    return Forecast(**{name: np.concatenate([getattr(part, name) for part in parts])[places] for name in names})


def strip_graphs(learning_task: LearningTask) -> LearningTask:
    """Returns the same rows as if no job's graph were known."""
    return dataclasses.replace(
        learning_task,
        jobs=tuple(_without_graph(job) for job in learning_task.jobs),
        others=tuple(tuple(_without_graph(other) for other in others) for others in learning_task.others),
    )


def _without_graph(job: JobFacts) -> JobFacts:
    return dataclasses.replace(job, graph={})


def _split(learning_task: LearningTask) -> tuple[IndexArray, IndexArray]:
    """Places of the rows with all graphs, and of the others."""
    is_missing = find_missing_graphs(learning_task)
    return np.flatnonzero(~is_missing), np.flatnonzero(is_missing)
