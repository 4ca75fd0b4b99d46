"""The columns that a target of a job alone is learned from.

Beside what the set publishes and what we computed: figures at the job's batch, because a device sees the product; and
every size as a share of the anchor, because a correction of physics depends on what a job's memory or time is made of,
not on how much of it there is. Sizes enter as logarithms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.batch_figures import figures_at
from predictor_service.learning.problem import FloatArray, Problem
from predictor_service.learning.raw_columns import RawColumns, learn_columns

_SIZE_RATIO_MIN: Final = 30.0
_ANCHOR_CORRELATION_MIN: Final = 0.6
_SHARES_MAX: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoloColumns:
    """How a problem becomes a table; learned from training rows.

    Attributes:
        raw: Published and computed figures.
        shares: Places among them that also enter as shares of the anchor.
        middle: Median of each figure, standing in for what a row lacks.
    """

    raw: RawColumns
    shares: tuple[int, ...]
    middle: FloatArray

    @property
    def published(self) -> tuple[int, ...]:
        """Places of the columns that no graph figure is in."""
        return tuple(place for place, name in enumerate(self.raw.names) if not name.startswith("graph."))

    def table(self, problem: Problem, anchor: FloatArray) -> FloatArray:
        """Returns shape (rows, columns), finite.

        Args:
            problem: Any rows, as `at_batches` returns them.
            anchor: What physics says of them, above 0, shape (rows,).
        """
        figures = self.raw.table(problem)
        filled = _as_logarithms(np.where(np.isfinite(figures), figures, self.middle))
        log_anchor = np.log(anchor)[:, None]
        return np.hstack([filled, log_anchor, filled[:, list(self.shares)] - log_anchor])


def at_batches(problem: Problem) -> Problem:
    """Puts the graph figures of every job at its batch; the problem itself stays as it is."""
    jobs = tuple(dataclasses.replace(job, graph=figures_at(job.graph, job.sub_batch)) for job in problem.jobs)
    return dataclasses.replace(problem, jobs=jobs)


def learn_solo_columns(problem: Problem, level: str, anchor: FloatArray) -> SoloColumns:
    """Chooses columns.

    Args:
        problem: Training rows, as `at_batches` returns them.
        level: What will be unseen, one of `problem.LEVELS`.
        anchor: What physics says of the rows, shape (rows,).
    """
    raw = learn_columns(problem, level, with_graph=True)
    figures = raw.table(problem)
    middle = np.array([_median(column) for column in figures.T])
    filled = np.where(np.isfinite(figures), figures, middle)
    shares = _sizes_like(filled, anchor) if problem.target.scale == "log_ratio" else ()
    return SoloColumns(raw=raw, shares=shares, middle=middle)


def _median(column: FloatArray) -> float:
    known = column[np.isfinite(column)]
    return float(np.median(known)) if len(known) else 0.0


def _as_logarithms(values: FloatArray) -> FloatArray:
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)))


def _sizes_like(figures: FloatArray, anchor: FloatArray) -> tuple[int, ...]:
    """Places of positive columns that span orders of magnitude and grow with the anchor, most alike first."""
    if len(anchor) < 3 or anchor.max() <= anchor.min():
        return ()
    log_anchor = np.log(anchor)
    alike = []
    for place, column in enumerate(figures.T):
        if column.min() > 0 and column.max() > _SIZE_RATIO_MIN * column.min():
            correlation = float(np.corrcoef(np.log(column), log_anchor)[0, 1])
            if correlation > _ANCHOR_CORRELATION_MIN:
                alike.append((-correlation, place))
    return tuple(place for _, place in sorted(alike)[:_SHARES_MAX])
