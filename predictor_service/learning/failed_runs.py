"""Rows of memory that no training step can have left: the run ended before one was through, whatever its set states.

Between the forward and the backward pass a step holds its weights, the state of the optimizer and everything that
backward needs. Less than that was measured of a run that had failed on the way there. Runs of the same network that
held the same at another batch failed at the same place, also where that batch alone would not show it: memory that
does not grow with the batch was never that of a step.

A model that learned from such rows predicts for a working job what a failed one held, and is no better or worse for
how far it is from that: `leave_out_failed_runs` takes them from what is learned and from what judges alike, and counts
them. Where more than a quarter of the rows are too small it is the figures of the graphs that are wrong, or jobs that
keep less than they seem to: all rows stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import numpy as np

from predictor_service.features.analytical_memory import described_parts
from predictor_service.learning.learning_task import BoolArray, JobFacts, LearningTask
from predictor_service.selection.targets import MEMORY

FAILED: Final = "memory that no training step can have left"
_FAILED_RATIO_MAX: Final = 0.25
_SHARE_MIN: Final = 0.8
"""Of what is counted: kernels that fuse keep up to an eighth less than the traced operators."""
_GRADIENT_BYTES: Final = 4
"""Of a parameter; they come to be while what they were computed from goes."""
_ALIKE_RATIO: Final = 1.1
"""Runs that ended at the same place differ by less."""


def leave_out_failed_runs(learning_task: LearningTask, left_out: Counter[str]) -> LearningTask:
    """The rows of runs that can have worked.

    Args:
        learning_task: Any target.
        left_out: How many rows were left out is added under `FAILED`.
    """
    failed = find_failed_runs(learning_task)
    count = int(failed.sum())
    if not 0 < count <= _FAILED_RATIO_MAX * len(failed):
        return learning_task
    left_out[FAILED] += count
    return learning_task.subset(np.flatnonzero(~failed))


def find_failed_runs(learning_task: LearningTask) -> BoolArray:
    """Marks rows that cannot be right.

    Args:
        learning_task: Any target; only rows of memory of training jobs whose graph is known are ever marked.

    Returns:
        Shape (rows,); True = the run failed.
    """
    too_small = np.array(
        [_is_too_small(job, held) for job, held in zip(learning_task.jobs, learning_task.measured, strict=True)]
    )
    if learning_task.target is not MEMORY or not too_small.any():
        return np.zeros(len(learning_task), dtype=np.bool_)
    ended_at: dict[str, list[float]] = defaultdict(list)
    for row in np.flatnonzero(too_small).tolist():
        ended_at[learning_task.jobs[row].architecture].append(float(learning_task.measured[row]))
    alike = [
        any(1.0 / _ALIKE_RATIO < held / end < _ALIKE_RATIO for end in ended_at[job.architecture])
        for job, held in zip(learning_task.jobs, learning_task.measured.tolist(), strict=True)
    ]
    return np.array(alike, dtype=np.bool_)


def _is_too_small(job: JobFacts, held_bytes: float) -> bool:
    parts = described_parts(job.graph, job.micro_batch_size, job.optimizer, job.precision)
    if parts is None or job.labels.get("mode", "train") != "train":
        return False
    without_gradients = parts["weights"] - _GRADIENT_BYTES * job.graph["parameters"]
    return held_bytes < _SHARE_MIN * (without_gradients + parts["saved"])
