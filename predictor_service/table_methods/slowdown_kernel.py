"""How alike two ordered pairs of jobs are: the kernel of the Gaussian process over slowdowns.

The likeness of two pairs is a sum of products: how alike the victims are, times how alike the others are. Each side of
a product is one of

    any      1: the part does not depend on this job
    smooth   near in what is measured of the jobs alone (a squared exponential with one length per column)
    family   smooth, and of one family
    job      the very same job

so that (job, any) is a victim's own sensitivity, (any, smooth) an aggressor effect that carries over to jobs never
seen, (smooth, smooth) an interaction of both. A straight line in the pair's columns is added, and a constant.

Source: Duvenaud, "Automatic model construction with Gaussian processes" (2014), chapter 2, for sums of products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, IndexArray
from predictor_service.table_methods.slowdown_pairs import JobSet, PairRows

ANY: Final = "any"
SMOOTH: Final = "smooth"
FAMILY: Final = "family"
JOB: Final = "job"
Part = tuple[str, str]
"""(likeness of victims, likeness of others)."""

_CONSTANT: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairKernel:
    """A sum of parts; its parameters are logarithms.

    Parameters, in order: length of each column for victims, the same for others, weight of each part, weight of the
    line when there is one.

    Attributes:
        parts: At least one.
        columns: Number of columns of a job.
        has_line: Whether a straight line in the pair's columns is added.
    """

    parts: tuple[Part, ...]
    columns: int
    has_line: bool

    @property
    def count(self) -> int:
        """Number of parameters."""
        return 2 * self.columns + len(self.parts) + int(self.has_line)

    def matrix(self, parameters: FloatArray, left: PairRows, right: PairRows) -> FloatArray:
        """Likeness of every left pair with every right one, shape (left, right)."""
        victims, others = self._sides(parameters, left.jobs, right.jobs)
        result = np.full((len(left), len(right)), _CONSTANT)
        for kind, mixed in self._mix(parameters, others).items():
            result += victims[kind][np.ix_(left.victim, right.victim)] * mixed[np.ix_(left.other, right.other)]
        if self.has_line:
            result += np.exp(parameters[-1]) * (left.line_columns() @ right.line_columns().T)
        return result

    def variance(self, parameters: FloatArray, rows: PairRows) -> FloatArray:
        """Likeness of each pair with itself, shape (rows,)."""
        result = np.full(len(rows), _CONSTANT + np.exp(self._weights(parameters)).sum())
        return result + np.exp(parameters[-1]) * np.sum(rows.line_columns() ** 2, axis=1) if self.has_line else result

    def gradient(self, parameters: FloatArray, rows: PairRows, sensitivity: FloatArray) -> FloatArray:
        """Gradient of a function of the matrix of some rows with themselves.

        Args:
            parameters: Where.
            rows: The pairs.
            sensitivity: Derivative of the function by each cell of the matrix, symmetric, shape (rows, rows).

        Returns:
            Derivative by each parameter, shape (count,).
        """
        victims, others = self._sides(parameters, rows.jobs, rows.jobs)
        mixed = self._mix(parameters, others)
        of_victim, of_other = (
            _membership(rows.victim, len(rows.jobs.keys)),
            _membership(rows.other, len(rows.jobs.keys)),
        )
        weights = np.exp(self._weights(parameters))
        by_weight = np.zeros(len(self.parts))
        scaled = {"victim": np.zeros_like(others[JOB]), "other": np.zeros_like(others[JOB])}
        for kind, mix in mixed.items():
            folded = _fold(sensitivity * victims[kind][np.ix_(rows.victim, rows.victim)], of_other)
            for place, (_, other_kind) in self._parts_of(kind):
                share = weights[place] * folded * others[other_kind]
                by_weight[place] = share.sum()
                if other_kind in _STRETCHED:
                    scaled["other"] += share
            if kind in _STRETCHED:
                scaled["victim"] += _fold(sensitivity * mix[np.ix_(rows.other, rows.other)], of_victim) * victims[kind]
        lengths = [
            float((scaled[side] * _squares(rows.jobs.columns[:, column], rows.jobs.columns[:, column])).sum())
            for side in ("victim", "other")
            for column in range(self.columns)
        ]
        by_length = np.array(lengths) * np.exp(-2.0 * parameters[: 2 * self.columns])
        result = [by_length, by_weight]
        if self.has_line:
            line = rows.line_columns()
            result.append(np.array([np.exp(parameters[-1]) * np.sum((sensitivity @ line) * line)]))
        return np.concatenate(result)

    def _weights(self, parameters: FloatArray) -> FloatArray:
        start = 2 * self.columns
        return parameters[start : start + len(self.parts)]

    def _parts_of(self, victim_kind: str) -> Iterator[tuple[int, Part]]:
        return ((place, part) for place, part in enumerate(self.parts) if part[0] == victim_kind)

    def _mix(self, parameters: FloatArray, others: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """By likeness of victims, the weighted sum of the likenesses of others that it is multiplied with."""
        mixed: dict[str, FloatArray] = {}
        for (victim_kind, other_kind), weight in zip(self.parts, np.exp(self._weights(parameters)), strict=True):
            mixed[victim_kind] = mixed.get(victim_kind, 0.0) + weight * others[other_kind]
        return mixed

    def _sides(
        self, parameters: FloatArray, left: JobSet, right: JobSet
    ) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """Likeness of jobs by kind, for victims and for others; each of shape (left, right)."""
        same_family, same_job = _equal(left.families, right.families), _equal(left.keys, right.keys)
        sides = []
        for start in (0, self.columns):
            distance = np.zeros_like(same_job)
            for column, length in enumerate(np.exp(parameters[start : start + self.columns])):
                distance += _squares(left.columns[:, column], right.columns[:, column]) / length**2
            smooth = np.exp(-0.5 * distance)
            sides.append({ANY: np.ones_like(same_job), SMOOTH: smooth, FAMILY: smooth * same_family, JOB: same_job})
        return sides[0], sides[1]


_STRETCHED: Final = (SMOOTH, FAMILY)


def _squares(left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray((left[:, None] - right[None, :]) ** 2)


def _equal(left: Sequence[str], right: Sequence[str]) -> FloatArray:
    return np.asarray((np.array(left)[:, None] == np.array(right)[None, :]).astype(np.float64))


def _membership(index: IndexArray, jobs: int) -> FloatArray:
    """1 where a row has a job, shape (rows, jobs)."""
    member = np.zeros((len(index), jobs))
    member[np.arange(len(index)), index] = 1.0
    return member


def _fold(cells: FloatArray, member: FloatArray) -> FloatArray:
    """From rows back to jobs: sums the cells of every two jobs."""
    return np.asarray(member.T @ cells @ member)
