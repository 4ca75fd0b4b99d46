"""What a model has to beat, on the same rows and the same splits.

mean                the mean of the training rows
additive            slowdowns: effect of the victim plus effect of the others on ln(1 + slowdown)
roofline            analytical estimates: roofline time, counted memory, share of a step not spent waiting; for
                    slowdowns, fair turns on the device. Only where every test row has the figures
gradient_boosting   xgboost with 150 trees and its own defaults on the columns as the set publishes them; quantities
                    that span orders of magnitude are learned as logarithms, which makes it a stronger baseline
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from sklearn.linear_model import Ridge

from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.selection.targets import MEMORY, SLOWDOWN, SM_ACTIVITY, STEP, UTILIZATION
from predictor_service.table_methods.untuned_trees import fit_untuned_trees

_RIDGE: Final = 1.0

Baseline = Callable[[LearningTask, LearningTask, str, int], FloatArray | None]
"""From training rows, test rows, what is held out, and a seed to predictions; None where it does not apply."""


def _mean(train: LearningTask, test: LearningTask, level: str, seed: int) -> FloatArray:
    return np.full(len(test), float(train.measured.mean()))


def _additive(train: LearningTask, test: LearningTask, level: str, seed: int) -> FloatArray | None:
    if train.target is not SLOWDOWN:
        return None
    keys = sorted({job.job_key for jobs in (train.jobs, *train.others) for job in jobs})
    place = {key: index for index, key in enumerate(keys)}
    model = Ridge(alpha=_RIDGE).fit(_membership(train, place), SLOWDOWN.compress(train.measured))
    return SLOWDOWN.expand(np.asarray(model.predict(_membership(test, place)), dtype=np.float64))


def _membership(learning_task: LearningTask, place: Mapping[str, int]) -> FloatArray:
    """One column per victim and one per co-located job; jobs that were never seen have no effect of their own."""
    table = np.zeros((len(learning_task), 2 * len(place)))
    for row, (victim, others) in enumerate(zip(learning_task.jobs, learning_task.others, strict=True)):
        if victim.job_key in place:
            table[row, place[victim.job_key]] = 1.0
        for other in others:
            if other.job_key in place:
                table[row, len(place) + place[other.job_key]] += 1.0
    return table


def _roofline(train: LearningTask, test: LearningTask, level: str, seed: int) -> FloatArray | None:
    values = [_PHYSICS[test.target.name](job, others) for job, others in zip(test.jobs, test.others, strict=True)]
    known = [value for value in values if value is not None]
    return np.array(known, dtype=np.float64) if len(known) == len(values) else None


def _fair_turns(victim: JobFacts, others: tuple[JobFacts, ...]) -> float | None:
    shares = [job.solo.utilization_ratio for job in (victim, *others)]
    known = [share for share in shares if share is not None]
    return known[0] * sum(known[1:]) if len(known) == len(shares) else None


_PHYSICS: Final[Mapping[str, Callable[[JobFacts, tuple[JobFacts, ...]], float | None]]] = {
    STEP.name: lambda job, _: job.graph.get("roofline_ms"),
    MEMORY.name: lambda job, _: job.graph.get("analytical_memory_bytes"),
    UTILIZATION.name: lambda job, _: 1.0 - job.input_wait_ratio,
    SM_ACTIVITY.name: lambda job, _: 1.0 - job.input_wait_ratio,
    SLOWDOWN.name: _fair_turns,
}


def _gradient_boosting(train: LearningTask, test: LearningTask, level: str, seed: int) -> FloatArray:
    return fit_untuned_trees(train, level, seed).predict(test)


BASELINES: Final[Mapping[str, Baseline]] = {
    "mean": _mean,
    "additive": _additive,
    "roofline": _roofline,
    "gradient_boosting": _gradient_boosting,
}
"""In the order of the report."""
