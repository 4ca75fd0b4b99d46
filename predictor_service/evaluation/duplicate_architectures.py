"""One graph under two names: what was held out under one of them may not be learned from under the other.

Public sets name models by their weights or authors (deit_base_patch16_384 computes what vit_base_patch16_384 does), so
that names alone leave the very graph of a test row among the rows to learn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from predictor_service.evaluation.splits import Split
from predictor_service.learning.learning_task import JobFacts, LearningTask

LEVELS: Final = frozenset({"architecture", "family"})
"""Where a graph is meant to be unseen; elsewhere it may be learned from at another batch or on another device."""
FIGURES_MIN: Final = 8
"""Fewer figures may be equal by chance."""
_OF_ANY_BATCH: Final = ("_per_sample", "_constant", "_nodes")
_Print = tuple[tuple[str, float], ...]


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
