"""Published columns that give the answer away.

A set may publish the measured quantity beside the features, in another unit. Whoever learns from such a column scores
well here and fails on the first job that was not measured before, so it is taken out and named.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor_service.learning.problem import FloatArray, JobFacts, Problem

VALUES_MIN: Final = 10
"""Fewer different values may follow a line by chance."""
RELATIVE_ERROR_MAX: Final = 1e-6


def remove_leaks(problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """Takes out every number of the job (the victim) of which the measured value is an exact line.

    Returns:
        The problem without these numbers, and their names.
    """
    names = sorted(
        {name for job in problem.jobs for name in (*job.raw, *job.graph)},
    )
    leaks = tuple(name for name in names if _is_line(_values(problem, name), problem.measured))
    if not leaks:
        return problem, ()
    cleaned = dataclasses.replace(
        problem,
        jobs=tuple(_without(job, leaks) for job in problem.jobs),
        others=tuple(tuple(_without(job, leaks) for job in others) for others in problem.others),
    )
    return cleaned, leaks


def _values(problem: Problem, name: str) -> FloatArray:
    return np.array([job.raw.get(name, job.graph.get(name, np.nan)) for job in problem.jobs])


def _is_line(values: FloatArray, measured: FloatArray) -> bool:
    known = np.isfinite(values)
    values, measured = values[known], measured[known]
    if len(np.unique(values)) < VALUES_MIN or len(np.unique(measured)) < VALUES_MIN:
        return False
    centred, target = values - values.mean(), measured - measured.mean()
    slope = float(centred @ target) / float(centred @ centred)
    return float(np.abs(target - slope * centred).max()) <= RELATIVE_ERROR_MAX * float(np.abs(target).max())


def _without(job: JobFacts, names: tuple[str, ...]) -> JobFacts:
    return dataclasses.replace(
        job,
        raw={name: value for name, value in job.raw.items() if name not in names},
        graph={name: value for name, value in job.graph.items() if name not in names},
    )
