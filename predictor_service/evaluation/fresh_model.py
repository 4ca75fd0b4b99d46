"""`evaluate --model fresh`: learns a target as `retrain` does, wherever a service could answer.

Rows that a version is learned from are selected and learned by the functions that `retrain` calls, and so answered with
what would be stored. What a service could not answer, jobs without any figure of their graph and device types that
nothing was learned from, is learned from all that the tables publish (`table_methods`); `benchmarks.rows_not_served`
counts such rows, and says why the fit that is served does not answer them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictor_service.fitting.conversion import NotLearnable
from predictor_service.fitting.fit import fit_rows
from predictor_service.fitting.known_rows import why_unanswerable
from predictor_service.fitting.learnable_rows import select_learnable
from predictor_service.learning.learning_task import (
    BoolArray,
    CandidateResult,
    FittedMethod,
    Forecast,
    LearningTask,
)
from predictor_service.selection.targets import SLOWDOWN, Target
from predictor_service.table_methods.missing_graphs import WithAndWithoutGraphs, predict_apart
from predictor_service.table_methods.slowdown_method import SlowdownMethod
from predictor_service.table_methods.solo_method import SoloMethod


@dataclass(frozen=True, slots=True)
class FittingMethod:
    """See the module.

    Attributes:
        level: What will be unseen, one of `learning_task.LEVELS`; inner folds hold out the same.
        name: For the report.
    """

    level: str
    name: str = "cotenant"

    def fit(self, learning_task: LearningTask, seed: int) -> FittedMethod:
        """Learns from all rows of a learning task; see `learning_task.Method`."""
        known = learnable_rows(learning_task)
        if known is None:
            return described_method(learning_task.target, self.level).fit(learning_task, seed)
        try:
            served = fit_rows(known, self.level, seed)
        except NotLearnable:
            return described_method(learning_task.target, self.level).fit(learning_task, seed)
        device = known.jobs[0].device
        return FittedAsServed(learning_task=learning_task, level=self.level, seed=seed, served=served, device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedAsServed:
    """What a service would store, and another fit for rows that it could not answer; made when first needed.

    Attributes:
        learning_task: Rows that were learned from.
        level: What will be unseen.
        seed: Of both fits.
        served: Learned from the rows that a service can learn from.
        device: The device type of those rows; a service answers no other by them.
    """

    learning_task: LearningTask
    level: str
    seed: int
    served: FittedMethod
    device: str

    @property
    def selected(self) -> str:
        """The candidate that a service would answer with."""
        return self.served.selected

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """Its scored table."""
        return self.served.candidates

    @cached_property
    def described(self) -> FittedMethod:
        """Learned from what is published of all rows."""
        return described_method(self.learning_task.target, self.level).fit(self.learning_task, self.seed)

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Predicts every row; one that a service could not answer is never in domain."""
        is_known = answerable(learning_task, self.device)
        return predict_apart(learning_task, is_known, self.served.predict, lambda rest: self.described.predict(rest))


def learnable_rows(learning_task: LearningTask) -> LearningTask | None:
    """The rows that a version is learned from; None where there are none, or of several device types."""
    known = select_learnable(learning_task).learned
    return known if len({job.device for job in known.jobs}) == 1 else None


def answerable(learning_task: LearningTask, device: str) -> BoolArray:
    """Whether a service that learned from one device type can answer each row, shape (rows,)."""
    rows = zip(learning_task.jobs, learning_task.others, strict=True)
    known = [job.device == device and not why_unanswerable(learning_task.target, job, others) for job, others in rows]
    return np.array(known, dtype=bool)


def described_method(target: Target, level: str) -> WithAndWithoutGraphs:
    """What learns from the columns that a table publishes and from whatever is known of graphs."""
    return WithAndWithoutGraphs(SlowdownMethod(level) if target is SLOWDOWN else SoloMethod(level))
