"""The columns that a target of a job alone is learned from.

In addition to what the set publishes and what we computed: figures at the job's batch, because a device sees the
product; and every size as a share of the analytical estimate, because a correction of physics depends on what a job's
memory or time is made of, not on how much of it there is. Sizes enter as logarithms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.graphs.batch_figures import figures_at
from predictor_service.learning.learning_task import FloatArray, LearningTask
from predictor_service.table_methods.raw_columns import RawColumns, learn_columns

_SIZE_RATIO_MIN: Final = 30.0
_ESTIMATE_CORRELATION_MIN: Final = 0.6
_SHARES_MAX: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoloColumns:
    """How a learning task becomes a table; learned from training rows.

    Attributes:
        raw: Published and computed figures.
        shares: Places among them that also enter as shares of the analytical estimate.
        middle: Median of each figure, standing in for what a row lacks.
    """

    raw: RawColumns
    shares: tuple[int, ...]
    middle: FloatArray

    @property
    def published(self) -> tuple[int, ...]:
        """Places of the columns that no graph figure is in."""
        return tuple(place for place, name in enumerate(self.raw.names) if not name.startswith("graph."))

    def table(self, learning_task: LearningTask, analytical_estimate: FloatArray) -> FloatArray:
        """Returns shape (rows, columns), finite.

        Args:
            learning_task: Any rows, as `at_batches` returns them.
            analytical_estimate: Analytical estimates of them, above 0, shape (rows,).
        """
        figures = self.raw.table(learning_task)
        filled = _as_logarithms(np.where(np.isfinite(figures), figures, self.middle))
        log_analytical_estimate = np.log(analytical_estimate)[:, None]
        return np.hstack([filled, log_analytical_estimate, filled[:, list(self.shares)] - log_analytical_estimate])


def at_batches(learning_task: LearningTask) -> LearningTask:
    """Puts the graph figures of every job at its batch; the learning task itself stays as it is."""
    jobs = tuple(
        dataclasses.replace(job, graph=figures_at(job.graph, job.micro_batch_size)) for job in learning_task.jobs
    )
    return dataclasses.replace(learning_task, jobs=jobs)


def learn_solo_columns(learning_task: LearningTask, level: str, analytical_estimate: FloatArray) -> SoloColumns:
    """Chooses columns.

    Args:
        learning_task: Training rows, as `at_batches` returns them.
        level: What will be unseen, one of `learning_task.LEVELS`.
        analytical_estimate: Analytical estimates of the rows, shape (rows,).
    """
    raw = learn_columns(learning_task, level, with_graph=True)
    figures = raw.table(learning_task)
    middle = np.array([_median(column) for column in figures.T])
    filled = np.where(np.isfinite(figures), figures, middle)
    shares = _sizes_like(filled, analytical_estimate) if learning_task.target.scale == "log_ratio" else ()
    return SoloColumns(raw=raw, shares=shares, middle=middle)


def _median(column: FloatArray) -> float:
    known = column[np.isfinite(column)]
    return float(np.median(known)) if len(known) else 0.0


def _as_logarithms(values: FloatArray) -> FloatArray:
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)))


def _sizes_like(figures: FloatArray, analytical_estimate: FloatArray) -> tuple[int, ...]:
    """Places of positive columns that span orders of magnitude and grow with the estimate, most alike first."""
    if len(analytical_estimate) < 3 or analytical_estimate.max() <= analytical_estimate.min():
        return ()
    log_analytical_estimate = np.log(analytical_estimate)
    alike = []
    for place, column in enumerate(figures.T):
        if column.min() > 0 and column.max() > _SIZE_RATIO_MIN * column.min():
            correlation = float(np.corrcoef(np.log(column), log_analytical_estimate)[0, 1])
            if correlation > _ESTIMATE_CORRELATION_MIN:
                alike.append((-correlation, place))
    return tuple(place for _, place in sorted(alike)[:_SHARES_MAX])
