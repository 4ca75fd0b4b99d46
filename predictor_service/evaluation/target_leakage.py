"""Published columns that give the answer away.

A set may publish the measured quantity among the features, in another unit. A model that learns from such a column
scores well here and fails on the first job that was not measured before, so it is taken out and named.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import defaultdict
from typing import Final

import numpy as np

from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask

VALUES_MIN: Final = 10
"""Fewer different values may follow a line by chance."""
RELATIVE_ERROR_MAX: Final = 1e-6


def remove_leaks(learning_task: LearningTask) -> tuple[LearningTask, tuple[str, ...]]:
    """Takes out every number of the job (the victim) of which the measured value is an exact line.

    Returns:
        The learning task without these numbers, and their names.
    """
    columns = _columns(learning_task)
    leaks = tuple(name for name in sorted(columns) if _is_line(*columns[name]))
    if not leaks:
        return learning_task, ()
    cleaned = dataclasses.replace(
        learning_task,
        jobs=tuple(_without(job, leaks) for job in learning_task.jobs),
        others=tuple(tuple(_without(job, leaks) for job in others) for others in learning_task.others),
    )
    return cleaned, leaks


def _columns(learning_task: LearningTask) -> dict[str, tuple[FloatArray, FloatArray]]:
    """By name the finite published values and the measured values of their rows; cost grows with the cells."""
    cells: dict[str, tuple[array[float], array[float]]] = defaultdict(lambda: (array("d"), array("d")))
    for job, measured in zip(learning_task.jobs, learning_task.measured.tolist(), strict=True):
        for name, value in {**job.graph, **job.raw}.items():
            if math.isfinite(value):
                cells[name][0].append(value)
                cells[name][1].append(measured)
    return {name: (np.array(values), np.array(measured)) for name, (values, measured) in cells.items()}


def _is_line(values: FloatArray, measured: FloatArray) -> bool:
    if len(np.unique(values)) < VALUES_MIN or len(np.unique(measured)) < VALUES_MIN:
        return False
    values = values / np.abs(values).max()  # squares of the largest numbers would be infinite
    centred, target = values - values.mean(), measured - measured.mean()
    slope = float(centred @ target) / float(centred @ centred)
    return float(np.abs(target - slope * centred).max()) <= RELATIVE_ERROR_MAX * float(np.abs(target).max())


def _without(job: JobFacts, names: tuple[str, ...]) -> JobFacts:
    return dataclasses.replace(
        job,
        raw={name: value for name, value in job.raw.items() if name not in names},
        graph={name: value for name, value in job.graph.items() if name not in names},
    )
