"""What physics says of a job alone, with as few coefficients fitted as physics leaves open.

memory      a sum of parts (context, weights and optimizer state, what backward needs, the widest tensors, the input),
            each with a coefficient of at least 0 that is fitted to the training rows by relative error: libraries and
            allocators decide how much of each part is really held, and they differ between frameworks, not between jobs
step_time   the simulated step, or the roofline where that is all that is known
others      no anchor

Corrections are learned relative to these figures, so that a model that knows nothing answers physics, and a job larger
than every training row is answered by its parts instead of by the largest row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from predictor_service.features.analytical_memory import PART_NAMES, described_parts
from predictor_service.learning.problem import FloatArray, JobFacts, Problem

LOG_TARGETS: Final = frozenset({"memory", "step_time"})
"""Targets that are learned as ln(measured / anchor); the others are shares and learned as they are."""
_ROWS_PER_COEFFICIENT: Final = 4
_RECKONED_MS: Final = ("roofline_ms", "simulated_launched_ms")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Physics:
    """A fitted anchor.

    Attributes:
        target: One of `problem.TARGETS`.
        coefficients: Of the memory's parts; empty where nothing was fitted.
        typical: Answer for rows whose facts are not known, in the target's unit.
    """

    target: str
    coefficients: FloatArray
    typical: float

    def anchor(self, problem: Problem) -> FloatArray:
        """What physics says of every row, in the target's unit, above 0; 1 for targets without physics."""
        if self.target not in LOG_TARGETS:
            return np.ones(len(problem))
        values = _PHYSICS[self.target](problem, self.coefficients)
        return np.where(np.isfinite(values) & (values > 0), values, self.typical)

    def encode(self, measured: FloatArray, anchor: FloatArray) -> FloatArray:
        """From the target's unit to the learned scale; same shapes."""
        return np.asarray(np.log(measured / anchor)) if self.target in LOG_TARGETS else measured

    def decode(self, value: FloatArray, anchor: FloatArray) -> FloatArray:
        """From the learned scale to the target's unit, within its possible range; same shapes."""
        if self.target in LOG_TARGETS:
            return np.asarray(np.exp(np.clip(value, -_LOG_MAX, _LOG_MAX)) * anchor)
        return np.asarray(np.clip(value, 0.0, 1.0))


_LOG_MAX: Final = 12.0


def fit_physics(problem: Problem) -> Physics:
    """Fits the anchor to training rows."""
    measured = problem.measured
    positive = measured[measured > 0]
    typical = float(np.exp(np.log(positive).mean())) if len(positive) else 1.0
    coefficients = _fit_parts(problem) if problem.target == "memory" else np.zeros(0)
    return Physics(target=problem.target, coefficients=coefficients, typical=typical)


def memory_parts(problem: Problem) -> FloatArray:
    """Parts of every row's memory, shape (rows, parts), bytes; NaN where a row's graph is not known."""
    return np.array([_parts(job) for job in problem.jobs]).reshape(len(problem), len(PART_NAMES))


def _parts(job: JobFacts) -> FloatArray:
    parts = described_parts(job.graph, job.sub_batch, job.optimizer, job.precision)
    return np.full(len(PART_NAMES), np.nan) if parts is None else np.array([parts[name] for name in PART_NAMES])


def _fit_parts(problem: Problem) -> FloatArray:
    """Coefficients by relative error; all 1 where there are too few rows to fit."""
    parts = memory_parts(problem)
    known = np.isfinite(parts).all(axis=1)
    if known.sum() < _ROWS_PER_COEFFICIENT * parts.shape[1]:
        return np.ones(parts.shape[1])
    relative = parts[known] / problem.measured[known][:, None]
    scale = np.maximum(relative.max(axis=0), 1e-12)
    coefficients, _ = nnls(relative / scale, np.ones(int(known.sum())))
    return np.asarray(coefficients / scale)


def _memory(problem: Problem, coefficients: FloatArray) -> FloatArray:
    return np.asarray(memory_parts(problem) @ coefficients)


def _step_time(problem: Problem, coefficients: FloatArray) -> FloatArray:
    return np.array([_reckoned_ms(job.graph) for job in problem.jobs])


def _reckoned_ms(facts: Mapping[str, float]) -> float:
    return next((facts[name] for name in _RECKONED_MS if name in facts), float("nan"))


_PHYSICS: Final[Mapping[str, Callable[[Problem, FloatArray], FloatArray]]] = {
    "memory": _memory,
    "step_time": _step_time,
}
