"""Two ways in which rows to learn from would give the answer away, and what is taken out against them.

One graph under two names: what was held out under one of them may not be learned from under the other.

Public sets name models by their weights or authors (deit_base_patch16_384 computes what vit_base_patch16_384 does), so
that names alone leave the very graph of a test row among the rows to learn from.

A published column: a set may publish the measured quantity among the features, in another unit. A model that learns
from such a column scores well here and fails on the first job that was not measured before, so it is taken out and
named.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from predictor_service.evaluation.splits import Split
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask

LEVELS: Final = frozenset({"architecture", "family"})
"""Where a graph is meant to be unseen; elsewhere it may be learned from at another batch or on another device."""
FIGURES_MIN: Final = 8
"""Fewer figures may be equal by chance."""
_OF_ANY_BATCH: Final = ("_per_sample", "_constant", "_nodes")
_Print = tuple[tuple[str, float], ...]
VALUES_MIN: Final = 10
"""Fewer different values may follow a line by chance."""
RELATIVE_ERROR_MAX: Final = 1e-6


def drop_duplicate_architectures(learning_task: LearningTask, splits: Iterable[Split], level: str) -> Iterator[Split]:
    """Takes rows out of the training sides of splits that have the graph of a held-out job under another name.

    Args:
        learning_task: All rows.
        splits: Of its groups at this level.
        level: One of `learning_task.LEVELS`.

    Yields:
        The splits; one may have no rows left to learn from.
    """
    if level not in LEVELS:
        yield from splits
        return
    jobs = [(job, *others) for job, others in zip(learning_task.jobs, learning_task.others, strict=True)]
    known = [{(str(getattr(job, level)), _print(job)) for job in row} for row in jobs]
    for split in splits:
        learned = {name for row in split.train for name, _ in known[row]}
        hidden = {figures for row in split.test for name, figures in known[row] if figures and name not in learned}
        kept = [row for row in split.train if not any(figures in hidden for _, figures in known[row])]
        yield Split(np.array(kept, dtype=np.intp), split.test)


def _print(job: JobFacts) -> _Print:
    """What a graph is known by: its lines over the batch where it has some, else all its figures at the job's batch."""
    lines = {name: value for name, value in job.graph.items() if name.endswith(_OF_ANY_BATCH)}
    figures = lines if any(name.endswith("_per_sample") for name in lines) else job.graph
    return tuple(sorted(figures.items())) if len(figures) >= FIGURES_MIN else ()


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
